"""Collate functions: from samples to a batch."""
