"""What comes out: exchanges, streams, dispatch plans, step plans. Pure data."""
