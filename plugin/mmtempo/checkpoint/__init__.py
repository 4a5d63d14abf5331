"""Checkpoints: what is saved, when, where, and how it is loaded."""
