"""Benchmarks of `tools/benchmark.py`: each compares a part with its stock counterpart."""

from __future__ import annotations

from collections.abc import Callable

from .checkpoint.measure import measure_checkpoint
from .family import PolicyError, measure_family
from .harness import Report
from .loader.measure import measure_loader
from .logger import measure_logger
from .monitor.measure import measure_monitor
from .resume import measure_resume
from .splat.measure import measure_splat

BENCHMARKS: dict[str, Callable[..., Report]] = dict(
    checkpoint=measure_checkpoint,
    family=measure_family,
    loader=measure_loader,
    logger=measure_logger,
    monitor=measure_monitor,
    resume=measure_resume,
    splat=measure_splat,
)

__all__ = ['BENCHMARKS', 'PolicyError', 'Report']
