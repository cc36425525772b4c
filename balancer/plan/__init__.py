"""What comes out: exchanges, streams, routes, dispatch plans, step plans. Pure data."""
