"""Parts that all benchmarks share: interleaved rounds, statistics, checks and the report."""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mmtempo.system.machine import machine


@dataclass
class Timing:
    """Values of one arm, one for each round.

    Attributes:
        seconds: Seconds in the order of the rounds; other units where a caller says so.
    """

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.seconds, n=4, method='inclusive')
        return low, high

    def figures(self) -> dict[str, Any]:
        """Return the statistics of seconds, in milliseconds, for the JSON file."""
        low, high = self.quartiles
        return dict(
            median_ms=1e3 * self.median, iqr_ms=[1e3 * low, 1e3 * high], n=len(self.seconds)
        )

    def plain_figures(self) -> dict[str, Any]:
        """Return the statistics of values that are not seconds, for the JSON file."""
        return dict(median=self.median, iqr=list(self.quartiles), n=len(self.seconds))

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Format median and quartiles as '1.5 [1.2, 1.9]'.

        Args:
            digits: Digits after the decimal point.
            scale: Factor of all values, such as 1000 for milliseconds. Defaults to 1.0.
        """
        values = [scale * value for value in (self.median, *self.quartiles)]
        middle, low, high = (f'{value:.{digits}f}' for value in values)
        return f'{middle} [{low}, {high}]'

    def __str__(self) -> str:
        """Format seconds as milliseconds."""
        return self.text(2, 1e3)


def ratio(slow: Timing, fast: Timing) -> Timing:
    """Return the ratio of two arms for each round."""
    return Timing([a / b for a, b in zip(slow.seconds, fast.seconds)])


def take_rounds(
    works: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 0,
    sync: bool = True,
) -> dict[str, list[Any]]:
    """Call each work once a round, in random order, with garbage collection disabled.

    Args:
        works: Functions by name.
        rounds: Number of rounds that count.
        warm_up: Number of rounds before them that do not count. Defaults to 0.
        sync: Whether to sync the disks before each call, so that no work pays for the writes of
            another. Defaults to True.

    Returns:
        What each work returned, by name, in the order of the rounds that count.
    """
    order, names = random.Random(0), list(works)
    taken: dict[str, list[Any]] = {name: [] for name in works}
    gc.collect()
    gc.freeze()  # existing objects need not be traversed by each collection below
    try:
        for _ in range(warm_up + rounds):
            order.shuffle(names)
            for name in names:
                if sync and hasattr(os, 'sync'):
                    os.sync()
                # Garbage of one work must not be collected in the time of another.
                gc.collect()
                gc.disable()
                taken[name].append(works[name]())
                gc.enable()
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: values[warm_up:] for name, values in taken.items()}


def interleave(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each arm once a round, in random order.

    Args:
        arms: Functions by name.
        rounds: Number of rounds that count.
        warm_up: Number of rounds before them that do not count. Defaults to 2.
        clock: Function that returns seconds. Defaults to `time.perf_counter`.
    """

    def timed(arm: Callable[[], Any]) -> float:
        start = clock()
        arm()
        return clock() - start

    works = {name: partial(timed, arm) for name, arm in arms.items()}
    taken = take_rounds(works, rounds, warm_up, sync=False)
    return {name: Timing(seconds) for name, seconds in taken.items()}


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Redirect file descriptor 2 to the null device: torch's profiler writes to it directly."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(os.devnull, 'wb') as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def allocated_bytes(work: Callable[[], Any]) -> int:
    """Return the sum of all CPU allocations of `work`, temporaries of operators included."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with _without_stderr(), torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    return sum(max(event.nbytes(), 0) for event in events if event.name() == '[memory]')


@dataclass
class Check:
    """A measured value and its bar."""

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
    """Figures of all arms, and the checks of them."""

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
        """Add a check with a lower bar."""
        self.checks.append(Check(name, value, limit, at_least=True))

    def at_most(self, name: str, value: float, limit: float) -> None:
        """Add a check with an upper bar."""
        self.checks.append(Check(name, value, limit, at_least=False))

    def add_table(self, title: str, columns: Iterable[str], left: Collection[str] = ()) -> Table:
        """Add a table without rows, and return it.

        Args:
            title: Its title.
            columns: Names of the columns, in order.
            left: Names of the columns that are aligned left; others are aligned right.
                Defaults to ().
        """
        table = Table(title=title, title_justify='left')
        for name in columns:
            table.add_column(name, justify='left' if name in left else 'right')
        self.tables.append(table)
        return table

    def show(self, console: Console) -> None:
        """Print machine, tables, notes and checks."""
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

    def finish(self, path: str | None) -> int:
        """Print the report; return the exit code of the program: 1 if a bar is missed, else 0.

        Args:
            path: Path of a JSON file for the figures; None writes no file.
        """
        self.show(Console(width=None if sys.stdout.isatty() else 140))
        if path:
            self.write(path)
        return 0 if self.ok else 1
