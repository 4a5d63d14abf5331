"""Snapshot, archive and write a checkpoint; knows torch, and no mm-package."""
