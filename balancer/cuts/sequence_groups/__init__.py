"""Samples that groups of ranks share: all of a phase, or the long ones of an encoder."""
