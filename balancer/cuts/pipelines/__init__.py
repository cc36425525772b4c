"""Micro-batches in pipelines of stages, and encoders in the gaps of these."""
