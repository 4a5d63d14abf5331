"""Steps before and after a part has worked, in this fresh process; prints its figures as JSON.

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
REST = 0.5  # seconds after the work: workers have made what they prefetch
BATCHES = 8
INTERVAL = 0.1  # seconds between two samples of the machine, usually 1

# A step, and what the part does once; that may return figures.
Part = tuple[Callable[[], Any], Callable[[], dict[str, float]]]


class Toy:
    """A step that is bound by matrix products, with many short parallel regions.

    Args:
        regions: Pairs of a product and an elementwise operation. Defaults to 60.
        size: Rows and columns; elementwise operations are split above 32,768 elements. Defaults
            to 256.
    """

    def __init__(self, regions: int = 60, size: int = 256) -> None:
        self._regions = regions
        self._left, self._right, self._out, self._relu = torch.rand(4, size, size).unbind()

    def __call__(self) -> None:
        for _ in range(self._regions):
            torch.mm(self._left, self._right, out=self._out)
            torch.clamp(self._out, min=0, out=self._relu)


class _Points(torch.utils.data.Dataset):
    """Samples of which a batch is large enough for a parallel copy."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 128, 128), index / 64)


@contextlib.contextmanager
def nothing(args: argparse.Namespace) -> Iterator[Part]:
    """Tell how far two windows differ without a part."""
    yield Toy(), dict


@contextlib.contextmanager
def saving(name: str, args: argparse.Namespace) -> Iterator[Part]:
    """Save twice; the first save of a process allocates memory, the second one is timed."""
    arm, toy = Arm(name, args.width, args.folder), Toy()
    arm.runner.model.work = toy
    usual: list[float] = []

    def step() -> None:
        usual.append(arm.loop.step())

    def work() -> dict[str, float]:
        usual.sort()
        median = usual[len(usual) // 2]
        first, second = (arm.run(toy).lost(median)['lost'] for _ in range(2))
        return dict(first=first, lost=second)

    try:
        yield step, work
    finally:
        arm.close()


@contextlib.contextmanager
def loading(iteration: int, args: argparse.Namespace) -> Iterator[Part]:
    """Take batches from a loader with two workers, which then waits."""
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
    """Start the monitor's thread, which takes samples during the second window."""
    watch = MachineSampler(INTERVAL, readings=MachineReadings(torch.device('cpu')))

    def work() -> dict[str, float]:
        watch.start()
        return {}

    try:
        yield Toy(), work
    finally:
        watch.stop()


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
    """How often the calling thread has waited so far; None where that cannot be seen."""
    if sys.platform != 'linux':
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def native_threads() -> int | None:
    """Threads of the process that Python did not start; None where that cannot be seen."""
    if sys.platform != 'linux':
        return None
    return len(os.listdir('/proc/self/task')) - threading.active_count()


def window(step: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Return the seconds of each step, context switches per step, and native threads."""
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
    with PARTS[args.part](args) as (step, work):
        before = window(step, args.steps)
        figures = work()
        time.sleep(REST)
        return dict(before=before, after=window(step, args.steps), **figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('part', choices=PARTS)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--folder', default='.')
    parser.add_argument('--width', type=int, default=STATES['100 MB'])
    print(json.dumps(measure(parser.parse_args())))
    return 0


if __name__ == '__main__':
    sys.exit(main())
