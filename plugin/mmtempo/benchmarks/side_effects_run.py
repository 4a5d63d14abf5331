"""Measure steps before and after the work of a part in this process; print figures as JSON.

python -m mmtempo.benchmarks.side_effects_run save --steps 100 --folder FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mmtempo.benchmarks.checkpoint.arms import Arm
from mmtempo.benchmarks.checkpoint.measure import STATES
from mmtempo.loaders import StreamPosition, build_prefetch_dataloader
from mmtempo.system.readings import MachineReadings
from mmtempo.system.sampler import MachineSampler

WARM_UP = 10  # steps before each window
REST = 0.5  # seconds after the work, in which workers complete their prefetched batches
BATCHES = 8
INTERVAL = 0.1  # seconds between two readings of the machine; 1 by default in a training

# A step, and the work that the part does once; the work may return figures.
Part = tuple[Callable[[], Any], Callable[[], dict[str, float]]]


class Toy:
    """Step that is bound by matrix products and has many short parallel regions.

    Args:
        regions: Number of pairs of a product and an elementwise operation. Defaults to 60.
        size: Rows and columns of a matrix; torch parallelizes elementwise operations above 32,768
            elements. Defaults to 256.
    """

    def __init__(self, regions: int = 60, size: int = 256) -> None:
        self._regions = regions
        self._left, self._right, self._out, self._relu = torch.rand(4, size, size).unbind()

    def __call__(self) -> None:
        for _ in range(self._regions):
            torch.mm(self._left, self._right, out=self._out)
            torch.clamp(self._out, min=0, out=self._relu)


class _Points(torch.utils.data.Dataset):
    """Samples whose batches are large enough for a parallel copy."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 128, 128), index / 64)


@contextlib.contextmanager
def nothing(args: argparse.Namespace) -> Iterator[Part]:
    """Do no work, which shows the noise of the measurement."""
    yield Toy(), dict


@contextlib.contextmanager
def saving(name: str, args: argparse.Namespace) -> Iterator[Part]:
    """Save twice, of which the second is timed: the first save of a process allocates memory."""
    arm, toy = Arm(name, args.width, args.folder), Toy()
    arm.runner.model.work = toy
    steps: list[float] = []

    def step() -> None:
        steps.append(arm.loop.step())

    def work() -> dict[str, float]:
        median = sorted(steps)[len(steps) // 2]
        first, second = (arm.run(toy).lost(median)['lost'] for _ in range(2))
        return dict(first=first, lost=second)

    try:
        yield step, work
    finally:
        arm.close()


@contextlib.contextmanager
def loading(iteration: int, args: argparse.Namespace) -> Iterator[Part]:
    """Take batches from a loader with two workers, which is idle afterwards."""
    config = dict(
        dataset=_Points(),
        sampler=dict(type='InfiniteSampler', shuffle=True),
        batch_size=4,
        num_workers=2,
    )
    loader = build_prefetch_dataloader(config, seed=0, endless=True)

    def work() -> dict[str, float]:
        loader.seek(StreamPosition(0, iteration, iteration * 4))
        for _ in range(BATCHES):
            loader.take()
        return {}

    try:
        yield Toy(), work
    finally:
        loader.close()


@contextlib.contextmanager
def watching(args: argparse.Namespace) -> Iterator[Part]:
    """Start the thread of the monitor, which reads the machine during the second window."""
    sampler = MachineSampler(INTERVAL, readings=MachineReadings(torch.device('cpu')))

    def work() -> dict[str, float]:
        sampler.start()
        return {}

    try:
        yield Toy(), work
    finally:
        sampler.stop()


PARTS: dict[str, Callable[[argparse.Namespace], contextlib.AbstractContextManager[Part]]] = {
    'nothing': nothing,
    'no save': lambda args: saving('no save', args),
    'save by stock': lambda args: saving('stock', args),
    'save': lambda args: saving('ours', args),
    'loader': lambda args: loading(0, args),
    'resume': lambda args: loading(100_000, args),
    'monitor': watching,
}


def voluntary_switches() -> int | None:
    """Return the voluntary context switches of the calling thread so far; None except on Linux."""
    if sys.platform != 'linux':
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def native_threads() -> int | None:
    """Return the number of threads that Python did not start; None except on Linux."""
    if sys.platform != 'linux':
        return None
    return len(os.listdir('/proc/self/task')) - threading.active_count()


def window(step: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Run steps; return their seconds, context switches per step, and native threads."""
    for _ in range(WARM_UP):
        step()
    gc.collect()
    seconds, before = [], voluntary_switches()
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    after = voluntary_switches()
    switches = None if before is None or after is None else (after - before) / steps
    return dict(seconds=seconds, switches=switches, threads=native_threads())


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the windows before and after the work of a part, and the figures of the work."""
    with PARTS[args.part](args) as (step, work):
        before = window(step, args.steps)
        figures = work()
        time.sleep(REST)
        return dict(before=before, after=window(step, args.steps), **figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('part', choices=PARTS, help='part to measure')
    parser.add_argument('--steps', type=int, default=100, help='number of steps of each window')
    parser.add_argument('--folder', default='.', help='folder for checkpoints')
    parser.add_argument(
        '--width', type=int, default=STATES['100 MB'], help='embed_dims of the saved model'
    )
    print(json.dumps(measure(parser.parse_args())))
    return 0


if __name__ == '__main__':
    sys.exit(main())
