"""Snapshots, archives and the writer process of checkpoints; imports torch, but no mm-package."""
