"""One round of an arm: some batches from the middle of its stream, and what they cost."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope

from .arms import BATCH, LOADERS, PIPELINES, Arm, Source

MOST_LEVELS = 5  # by which a pipeline that rounds less often than stock may differ


@dataclass(frozen=True)
class Window:
    """What a number of batches took, in the middle of the stream; both for one sample.

    Attributes:
        seconds: Of the clock.
        cpu: Of this process and its workers; None where it cannot be seen.
    """

    seconds: float
    cpu: float | None


def run_round(source: Source, workers: int, lead: int, count: int) -> Window:
    """Start a loader, take batches, end it.

    Args:
        source: Of the samples.
        workers: How many.
        lead: Batches that are not counted: workers start, and find their rhythm.
        count: Batches that are counted.
    """
    dataset = source.dataset()
    before = None if source.arm.cache is None else dataset.stats()
    others = set(multiprocessing.active_children())
    stream = LOADERS[source.arm.loader](dataset, workers)
    try:
        for _ in range(lead):
            stream.take()
        started = [one.pid for one in set(multiprocessing.active_children()) - others]
        if len(started) != workers and source.arm.loader != 'spdl':
            raise RuntimeError(f'{len(started)} workers were started instead of {workers}')
        cpu, start = _cpu_of(started), time.perf_counter()
        for _ in range(count):
            stream.take()
        seconds, used = time.perf_counter() - start, _cpu_of(started)
    finally:
        stream.close()
    if before is not None:
        _check_cache(source.arm, before, dataset.stats(), (lead + count) * BATCH)
    samples = count * BATCH
    return Window(
        seconds / samples, None if cpu is None or used is None else (used - cpu) / samples
    )


def time_start(source: Source, workers: int) -> float:
    """Seconds from a configuration to the first batch."""
    config = source.config()
    start = time.perf_counter()
    stream = LOADERS[source.arm.loader](config, workers)
    try:
        stream.take()
        return time.perf_counter() - start
    finally:
        stream.close()


def _check_cache(arm: Arm, before: Any, after: Any, samples: int) -> None:
    """What was to be cold was cold, and what was to be warm was warm."""
    missed = after.misses - before.misses
    if arm.cache == 'nothing' and (before.samples or missed < samples - 1):
        raise RuntimeError(f'the cache should have been empty: {before}, then {after}')
    if arm.cache == 'all' and missed:
        raise RuntimeError(f'the cache should have had all: {before}, then {after}')


def _cpu_of(children: list[int | None]) -> float | None:
    """CPU seconds that this process and others have used so far."""
    if sys.platform != 'linux':
        return None
    used = time.process_time()
    # The clock of another process; what clock_getcpuclockid() would say.
    return used + sum(time.clock_gettime(~pid << 3 | 2) for pid in children if pid is not None)


def check_same_pixels(root: str, suffix: str, samples: int) -> None:
    """Draw by draw, all pipelines give the same, so that they are worth comparing.

    But for the one that rounds less often than stock: that gives nearly the same.
    """
    datasets = {}
    for name in PIPELINES:
        datasets[name] = Source(Arm('', name), root, suffix).dataset()
    cached = Source(Arm('', 'fast', 'nothing'), root, suffix).dataset()
    datasets.update({'put into the cache': cached, 'out of the cache': cached})
    for index in range(samples):
        found = {}
        for name, dataset in datasets.items():
            np.random.seed(index)
            found[name] = dataset[index]
        for name, sample in found.items():
            images = sample['inputs'], found['stock']['inputs']
            labels = [one['data_samples'].gt_sem_seg.data.int() for one in (sample, found['stock'])]
            if (
                images[0].shape != images[1].shape
                or (images[0].int() - images[1].int()).abs().max()
                > (MOST_LEVELS if name == 'rounded' else 0)
                or not torch.equal(*labels)
            ):
                raise RuntimeError(f'{suffix} {index}: {name} is not what stock gives')


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """One thread for each library, as Runner and torch set it in workers; mmseg's names; no log."""
    logger = MMLogger.get_current_instance()
    before = cv2.getNumThreads(), torch.get_num_threads(), logger.level
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    logger.setLevel('WARNING')
    try:
        with DefaultScope.overwrite_default_scope('mmseg'):
            yield
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])
        logger.setLevel(before[2])
