"""Readings and limits of the machine."""
