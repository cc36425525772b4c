"""Packs of documents that the ranks of a replica share token by token."""
