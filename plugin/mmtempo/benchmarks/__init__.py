"""Benchmarks behind `tools/benchmark.py`: each measures against the stock part, side by side."""

from __future__ import annotations

from collections.abc import Callable

from .checkpoint import measure_checkpoint
from .harness import Report
from .logger import measure_logger
from .splat import measure_splat

BENCHMARKS: dict[str, Callable[[bool], Report]] = dict(
    checkpoint=measure_checkpoint, logger=measure_logger, splat=measure_splat
)

__all__ = ['BENCHMARKS', 'Report']
