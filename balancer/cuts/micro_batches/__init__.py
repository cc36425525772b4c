"""Micro-batches under a cap on tokens and other limits, whole samples in slots."""
