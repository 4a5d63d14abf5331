"""Causes of slow steps: each returns a function that loses time and returns the seconds lost."""

from __future__ import annotations

import gc
import mmap
import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch

# Called in each training step, with its number from 1 and the batch.
Cause = Callable[[int, Any], float]


def wait(seconds: float) -> float:
    """Wait, and return the seconds that it took."""
    start = time.perf_counter()
    if seconds > 0:
        time.sleep(seconds)
    return time.perf_counter() - start


def burn(seconds: float) -> None:
    """Compute for some CPU seconds of this thread."""
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


def pace(begin: int, extra: float) -> Cause:
    """From one iteration on, each step takes longer."""
    return lambda number, _: wait(extra) if number >= begin else 0.0


def drift(extra: float) -> Cause:
    """Each step takes a little longer than the previous one: `extra` seconds per iteration."""
    return lambda number, _: wait(extra * number)


def collection(every: int) -> Cause:
    """Collect garbage within each N-th step; `ManyObjects` counts the time."""

    def collect(number: int, _: Any) -> float:
        if number % every == 0:
            gc.collect()
        return 0.0

    return collect


def kernel_search(seconds: float) -> Cause:
    """Search for kernels at each new shape, as cuDNN does if `cudnn_benchmark` is set."""
    known: set[tuple] = set()

    def search(number: int, batch: Any) -> float:
        shape = tuple(batch.shape)
        if shape in known or not torch.backends.cudnn.benchmark:
            return 0.0
        known.add(shape)
        took = wait(seconds)
        return took if number > 5 else 0.0  # the first shape is part of any training

    return search


def slow_rank(rank: int, extra: float) -> Cause:
    """Each step of one rank takes longer."""
    return lambda *_: wait(extra) if int(os.environ['RANK']) == rank else 0.0


def delays(every: int, extra: float, reading: str) -> Cause:
    """Each N-th step takes longer, and a counter of the machine rises meanwhile."""
    from tests.verdicts.readings import note

    def delay(number: int, _: Any) -> float:
        if number % every:
            return 0.0
        took = wait(extra)
        note(reading, took)
        return took

    return delay


def throttled_device(begin: int, until: int, reason: str, extra: float) -> Cause:
    """Steps take longer while the driver reports that it reduces the clocks."""
    from tests.verdicts.readings import throttle

    def slow_down(number: int, _: Any) -> float:
        is_throttled = begin <= number < until
        throttle(reason if is_throttled else None)
        return wait(extra) if is_throttled else 0.0

    return slow_down


def noise(seconds: float, spread: float) -> Cause:
    """Steps of varying work, as of real inputs; nothing is lost."""
    source = random.Random(0)

    def vary(*_: Any) -> float:
        wait(seconds * source.lognormvariate(0, spread))
        return 0.0

    return vary


def fresh_pages(megabytes: int) -> Cause:
    """Each step touches new memory, which are minor page faults; nothing is lost."""

    def touch(*_: Any) -> float:
        with mmap.mmap(-1, megabytes << 20) as memory:
            for offset in range(0, len(memory), mmap.PAGESIZE):
                memory[offset] = 1
        return 0.0

    return touch


CAUSES: dict[str, Callable[..., Cause]] = {
    one.__name__: one
    for one in (
        pace, drift, collection, kernel_search, slow_rank, delays, throttled_device, noise,
        fresh_pages,
    )
}  # fmt: skip
