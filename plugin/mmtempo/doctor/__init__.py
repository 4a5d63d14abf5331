"""Checks of a config before a training, and a census of its synchronizations."""
