"""Benchmarks of the loader and of PKSampler against stock."""
