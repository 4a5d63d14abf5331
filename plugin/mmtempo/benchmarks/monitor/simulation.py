"""Simulate a training of any length on a fake clock, recorded as a real training is."""

from __future__ import annotations

import gc
import random
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from mmtempo.loaders.pipeline import BatchInfo
from mmtempo.loaders.worker import WorkerTiming
from mmtempo.monitor.run_recorder import RunRecorder
from mmtempo.monitor.training_monitor import FACTS
from mmtempo.timing.run_files import RunFiles
from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.timeline import Timeline

INTERVAL = 50  # iterations between two log points
STALL = 331  # iterations between two stalls, at the end of each epoch
WARNING = 10_000  # iterations between two warnings
PHASES = ('data', 'forward', 'backward', 'step', 'hook:SparseLoggerHook', 'hook:X')
SETTING = dict(
    loop='PrefetchIterBasedTrainLoop', by_epoch=False, epoch_length=STALL, num_workers=8,
    batch_size=4, world=2, accumulation=1, log_interval=INTERVAL, val_interval=5000,
    checkpoint_interval=5000, max_iters=1_000_000, parts=['PrefetchIterBasedTrainLoop'],
)  # fmt: skip


class Simulation:
    """Recorder that does the work of `TrainingMonitor` in each iteration, without a training.

    Args:
        folder: Folder for the files that a training writes to its work dir.
    """

    def __init__(self, folder: str) -> None:
        self._now = 0
        self._timeline = Timeline('data', len(FACTS), clock=lambda: self._now)
        self._phases = [self._timeline.phase(name) for name in PHASES]
        meter = IterationStats(
            self._timeline,
            FACTS,
            {'hook:X': 'hook', 'hook:SparseLoggerHook': 'logging'},
            machine=lambda start, end: dict(psi_cpu=0.1 * (end - start)),
        )
        self._report = RunRecorder(dict(SETTING), meter, RunFiles(folder, print), first=0)
        noise = random.Random(0)
        # Drawn once: drawing each number would take longer than everything that is measured.
        self._noise = [int(2e7 * noise.lognormvariate(0, 0.1)) for _ in range(5003)]
        self._totals = [0.0] * len(FACTS)
        self._number = 0

    def run(self, until: int) -> None:
        """Continue to an iteration."""
        for number in range(self._number + 1, until + 1):
            self._iterate(number)
            if number % INTERVAL == 0:
                self._log(number)
        self._number = until

    def _iterate(self, number: int) -> None:
        """Record the phases and facts of an iteration."""
        noise, timeline = self._noise, self._timeline
        for index, phase in enumerate(self._phases):
            self._now += noise[(number * len(PHASES) + index) % len(noise)]
            if index == 0:
                timeline.begin()
            else:
                timeline.mark(phase)
        if number % STALL == 0:
            self._now += 10**9
            timeline.mark(self._phases[-1])
            self._totals[1] += 5000.0
        self._totals[0] += number % 3 == 0
        timing = WorkerTiming(number % 8, 0.07, 0.07, 4 * number, 0.05)
        delivery = BatchInfo([4 * number + index for index in range(4)], 0.0, timing)
        timeline.set_facts(self._totals.copy())
        timeline.annotate(dict(shape=(4, 3, 600, 800), delivery=delivery))

    def _log(self, number: int) -> None:
        """Record a log point."""
        report, seconds = self._report, self._now * 1e-9
        device = dict(allocated=11 << 30, utilisation=0.8 + number % 7 / 100, throttle=[])
        now = dict(time=seconds, ram_used=0.4, ram_of='the machine', device=device)
        report.update(
            memory=dict(now=now, peak=now),
            ranks=dict(data=dict(max=0.02, rank=number % 2), step=dict(max=0.1, rank=0)),
            device=dict(forward=dict(seconds=0.02 * number, p50=0.02, count=number)),
        )
        if number % WARNING == 0:
            report.warn(f'at iteration {number}', number)
        window = report.window()
        if window is not None:
            report.line(window)
            report.scalars(window)


class Held(NamedTuple):
    """Memory of a simulation.

    Attributes:
        bytes: Bytes of the simulation.
        objects: Number of objects in the process.
    """

    bytes: int
    objects: int


def held(folder: str, *iterations: int) -> list[Held]:
    """Return the memory of a simulated training at given iterations.

    Args:
        folder: Folder for its files.
        iterations: Iterations in ascending order.
    """
    simulation, found = Simulation(folder), []
    for number in iterations:
        simulation.run(number)
        gc.collect()
        found.append(Held(bytes_of(simulation), len(gc.get_objects())))
    return found


# Not followed: code is shared by the whole process and does not grow.
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)


def bytes_of(root: Any) -> int:
    """Return the bytes of an object and all that it refers to; tracemalloc is four times slower."""
    size, seen, todo = 0, {id(root)}, [root]
    while todo:
        one = todo.pop()
        size += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, CODE):
                seen.add(id(other))
                todo.append(other)
    return size
