"""Measure one round of an arm: the time of batches from the middle of its stream."""

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

MOST_LEVELS = 5  # largest difference from stock of the pipeline that rounds less often


@dataclass(frozen=True)
class Window:
    """Cost of a sample, averaged over batches from the middle of a stream.

    Attributes:
        seconds: Elapsed seconds.
        cpu: CPU seconds of this process and its workers; None except on Linux.
    """

    seconds: float
    cpu: float | None


def run_round(source: Source, workers: int, lead: int, count: int) -> Window:
    """Start a loader, take batches and close it.

    Args:
        source: Source of the samples.
        workers: Number of workers.
        lead: Number of batches at the start that do not count, until the workers run steadily.
        count: Number of batches that count.
    """
    dataset = source.dataset()
    before = None if source.arm.cache is None else dataset.stats()
    others = set(multiprocessing.active_children())
    stream = LOADERS[source.arm.loader](dataset, workers)
    try:
        for _ in range(lead):
            stream.take()
        started = [one.pid for one in set(multiprocessing.active_children()) - others]
        if len(started) != workers:
            raise RuntimeError(f'num_workers: expected {workers} workers, found {len(started)}')
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
    """Return the seconds from a config to the first batch."""
    config = source.config()
    start = time.perf_counter()
    stream = LOADERS[source.arm.loader](config, workers)
    try:
        stream.take()
        return time.perf_counter() - start
    finally:
        stream.close()


def _check_cache(arm: Arm, before: Any, after: Any, samples: int) -> None:
    """Raise RuntimeError unless a cold cache was empty, and a warm cache complete."""
    missed = after.misses - before.misses
    if arm.cache == 'nothing' and (before.samples or missed < samples - 1):
        raise RuntimeError(f'cache: expected an empty one, found {before}, then {after}')
    if arm.cache == 'all' and missed:
        raise RuntimeError(f'cache: expected all samples, found {before}, then {after}')


def _cpu_of(children: list[int | None]) -> float | None:
    """Return the CPU seconds of this process and its children so far; None except on Linux."""
    if sys.platform != 'linux':
        return None
    used = time.process_time()
    # The id of the CPU clock of another process, as clock_getcpuclockid() returns it.
    return used + sum(time.clock_gettime(~pid << 3 | 2) for pid in children if pid is not None)


def check_same_pixels(root: str, suffix: str, samples: int) -> None:
    """Raise RuntimeError unless all pipelines give the same samples as stock.

    The pipeline that rounds less often may differ by `MOST_LEVELS`.

    Args:
        root: Folder that `write_pictures` has filled.
        suffix: Suffix of the images, 'jpg' or 'png'.
        samples: Number of samples to compare.
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
                raise RuntimeError(f'{suffix} {index}: {name} differs from stock')


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """Use one thread per library, as in workers, the scope of mmseg, and no log below warnings."""
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
