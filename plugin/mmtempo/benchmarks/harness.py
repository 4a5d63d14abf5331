"""What every benchmark shares: interleaved timing, counts, checks, and the report."""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mmtempo.system.machine import machine


@dataclass
class Timing:
    """Seconds of each round, in order."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4, method='inclusive')
        return low, high

    def figures(self) -> dict[str, Any]:
        low, high = self.quartiles
        return dict(
            median_ms=1e3 * self.median, iqr_ms=[1e3 * low, 1e3 * high], n=len(self.seconds)
        )

    def __str__(self) -> str:
        low, high = self.quartiles
        return f'{1e3 * self.median:.2f} [{1e3 * low:.2f}, {1e3 * high:.2f}]'


def ratio(slow: Timing, fast: Timing) -> Timing:
    """How many times slower, round by round."""
    return Timing([a / b for a, b in zip(slow.seconds, fast.seconds)])


def interleave(
    arms: dict[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run each arm once a round, in random order; the first rounds do not count."""
    shuffled = random.Random(0)
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # what is there already need not be looked through again and again
    try:
        for number in range(warm_up + rounds):
            shuffled.shuffle(names)
            for name in names:
                # What one arm left behind is not collected in another one's time.
                gc.collect()
                gc.disable()
                start = clock()
                arms[name]()
                took = clock() - start
                gc.enable()
                if number >= warm_up:
                    seconds[name].append(took)
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: Timing(values) for name, values in seconds.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's profiler from writing its own start and stop to the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, 'wb') as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def allocated_bytes(work: Callable[[], Any]) -> int:
    """Sum of all that `work` asks the CPU allocator for, temporaries of operators included."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with _quiet(), torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    return sum(max(event.nbytes(), 0) for event in events if event.name() == '[memory]')


@dataclass
class Check:
    """A bar, and whether it is met."""

    name: str
    value: float
    limit: float
    at_least: bool

    @property
    def ok(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = '>=' if self.at_least else '<='
        return (
            f'{"ok  " if self.ok else "MISS"} {self.name}: {self.value:.4g} ({sign} {self.limit:g})'
        )


@dataclass
class Report:
    """Figures of all arms, and the checks on them."""

    benchmark: str
    machine: dict[str, Any] = field(default_factory=machine)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def at_least(self, name: str, value: float, limit: float) -> None:
        self.checks.append(Check(name, value, limit, at_least=True))

    def at_most(self, name: str, value: float, limit: float) -> None:
        self.checks.append(Check(name, value, limit, at_least=False))

    def show(self, console: Console) -> None:
        """Print everything a reader needs to judge the figures."""
        found = self.machine
        console.print(
            f'{self.benchmark}: {found["cpu"]}, {found["cores"]} cores, '
            f'{found["torch_threads"]} torch threads, torch {found["torch"]}, '
            f'Python {found["python"]}, {found["accelerator"] or "no accelerator"}'
        )
        for table in self.tables:
            console.print(table)
        for line in [*self.notes, *map(str, self.checks)]:
            console.print(line, markup=False, highlight=False)

    def write(self, path: str) -> None:
        """Write the figures as JSON."""
        content = dict(
            benchmark=self.benchmark,
            machine=self.machine,
            arms=self.arms,
            checks=[dict(name=c.name, value=c.value, limit=c.limit, ok=c.ok) for c in self.checks],
        )
        Path(path).write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
