"""Benchmark of the splat formulations."""
