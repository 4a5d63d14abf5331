"""Checks and verdicts: what is wrong or slow, why, and what to change."""
