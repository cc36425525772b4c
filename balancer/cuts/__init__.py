"""A room for each way to cut a step: how it is planned, and what comes out. The list is in `rooms.py`."""
