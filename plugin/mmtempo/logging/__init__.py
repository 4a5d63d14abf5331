"""Scalars, histories and log output."""
