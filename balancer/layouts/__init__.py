"""Layouts: phases whose GPUs are split unlike, planned over replicas, and what travels between their GPUs."""
