"""Collate functions, which make a batch of samples."""
