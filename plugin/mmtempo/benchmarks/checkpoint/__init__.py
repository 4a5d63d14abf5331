"""Benchmark of checkpoint saves against the stock hook."""
