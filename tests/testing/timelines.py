"""Timelines on a clock that only a test advances."""

from __future__ import annotations

import random
from typing import Any

from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.timeline import Timeline

SECOND = 1_000_000_000  # nanoseconds


class Clock:
    """Clock in nanoseconds that only `go` advances."""

    def __init__(self) -> None:
        self.now = 7 * SECOND

    def __call__(self) -> int:
        return self.now

    def go(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += round(seconds * SECOND)


class MeasuredRun:
    """Statistics over iterations of about 100 ms.

    Args:
        before: Number of the last iteration before the run. Defaults to 0.
        options: Options of `IterationStats`.
    """

    def __init__(self, before: int = 0, **options: Any) -> None:
        self.clock = Clock()
        self.timeline = Timeline('data', facts=1, clock=self.clock, before=before)
        self.meter = IterationStats(self.timeline, ('gc_seconds',), **options)
        self.noise = random.Random(0)
        self.number = before
        self.collected = 0.0  # total seconds of garbage collection
        self.counts = lambda number: True  # whether the facts are read in an iteration

    def go(self, data: float = 0.0, note: Any = None, **more: float) -> None:
        """Run an iteration with additional seconds in some phases."""
        self.number += 1
        spent = dict(data=0.01 + data, forward=0.06, backward=0.03, **more)
        for name, seconds in spent.items():
            self.clock.go(seconds * self.noise.lognormvariate(0, 0.02))
            if name == 'data':
                self.timeline.begin()
            else:
                self.timeline.mark(self.timeline.phase(name))
        if self.counts(self.number):
            self.timeline.set_facts((self.collected,))
        if note is not None:
            self.timeline.annotate(note)
        self.timeline.end()
