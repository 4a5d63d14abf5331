"""Benchmark of the cost of monitoring."""
