"""Benchmark of the throughput monitor."""
