"""A log's plans, step by step; plan files replayed and checked."""
