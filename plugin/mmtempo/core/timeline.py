"""A ledger of a training's time: each moment belongs to one phase of one iteration."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

NANO = 1e-9
_Ended = tuple[int, int, int, tuple, Any, list[int]]
# Columns of the ledger; what comes when all have a name is charged to the last one.
MOST_PHASES = 64
# Of the training that runs in this process; parts of it that know what they cost look for it.
_active: Timeline | None = None


@dataclass
class Block:
    """Iterations that have ended, one after the other.

    Attributes:
        numbers: Which they are.
        starts: Seconds on the timeline's clock at which each began.
        spent: Seconds of each in each phase.
        kinds: Which are to be compared with each other.
        facts: What was counted while they ran.
        notes: What else whoever measured them has to say of each.
    """

    numbers: np.ndarray
    starts: np.ndarray
    spent: np.ndarray
    kinds: np.ndarray
    facts: np.ndarray
    notes: list[Any]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def seconds(self) -> np.ndarray:
        """Of each iteration, whole."""
        return self.spent.sum(axis=1)


class Timeline:
    """Charges the time between two marks to a phase; the phases of an iteration sum to its time.

    ::

        close | first phase | begin ... mark(a) ... mark(b) ... | close
              the one that waits for the batch       the iteration has ended

    Memory is fixed: the last `capacity` iterations are kept in a ring.

    Args:
        first: The phase between two iterations.
        facts: How many numbers are counted for each iteration. Defaults to 0.
        capacity: How many iterations are kept. Defaults to 1024.
        clock: Gives nanoseconds; `time.perf_counter_ns` if none is given.
    """

    def __init__(
        self,
        first: str,
        facts: int = 0,
        capacity: int = 1024,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.names: list[str] = [first]
        self.ended = 0  # iterations, ever
        self._clock = clock
        self._spent = [0]
        self._carved: list[tuple[int, int]] = []
        self._no_facts = (0.0,) * facts
        # Arrays are made of them when they are asked for: to write into those takes longer.
        self._ended: deque[_Ended] = deque(maxlen=capacity)
        self.began = self._last = self._start = clock()

    def phase(self, name: str) -> int:
        """The number of a phase; a new one where there was none of that name."""
        if name in self.names:
            return self.names.index(name)
        if len(self.names) == MOST_PHASES - 1:
            name = 'other'
        elif len(self.names) == MOST_PHASES:
            return MOST_PHASES - 1
        self.names.append(name)
        self._spent.append(0)
        return len(self.names) - 1

    def mark(self, phase: int) -> None:
        """All since the last mark was this phase, but for what was carved out of it."""
        now = self._clock()
        self._spent[phase] += now - self._last
        if self._carved:
            self._settle(phase)
        self._last = now

    def carve(self, name: str, nanoseconds: int) -> None:
        """So much of the time that is marked next belongs to another phase."""
        self._carved.append((self.phase(name), nanoseconds))

    def spent(self, phase: int) -> float:
        """Seconds of the open iteration in a phase, so far."""
        return self._spent[phase] * NANO

    def close(self, number: int, kind: int = 0, facts: Any = (), note: Any = None) -> None:
        """End an iteration where its last mark was; what followed is the next one's first phase.

        Args:
            number: Of the iteration.
            kind: Those it is compared with have the same. Defaults to 0.
            facts: What was counted for it. Defaults to ().
            note: Kept with it. Defaults to None.
        """
        ended = number, self._start, kind, facts or self._no_facts, note, self._spent
        self._ended.append(ended)
        self.ended += 1
        self._start = self._last
        self._spent = [0] * len(self._spent)

    def start(self) -> None:
        """Begin anew: what was before belongs to no iteration."""
        self._spent = [0] * len(self._spent)
        self._carved.clear()
        self._last = self._start = self._clock()

    def last(self, count: int) -> Block:
        """The iterations that have ended last, as many as are kept."""
        first = max(0, len(self._ended) - count)
        rows = list(itertools.islice(self._ended, first, None))
        numbers, starts, kinds, facts, notes, spent = zip(*rows) if rows else ((),) * 6
        width = len(self.names)
        padded = [one + [0] * (width - len(one)) if len(one) < width else one for one in spent]
        return Block(
            numbers=np.array(numbers, np.int64),
            starts=(np.array(starts, np.int64) - self.began) * NANO,
            spent=np.array(padded, np.int64).reshape(len(rows), width) * NANO,
            kinds=np.array(kinds, np.int8),
            facts=np.array(facts, np.float64).reshape(len(rows), len(self._no_facts)),
            notes=list(notes),
        )

    def _settle(self, phase: int) -> None:
        for other, nanoseconds in self._carved:
            self._spent[other] += nanoseconds
            self._spent[phase] -= nanoseconds
        self._carved.clear()


def activate(timeline: Timeline) -> None:
    """From now on `charged_to` finds this one."""
    global _active
    _active = timeline


def deactivate(timeline: Timeline) -> None:
    """Unless another one has taken its place."""
    global _active
    if _active is timeline:
        _active = None


@contextlib.contextmanager
def charged_to(name: str) -> Iterator[None]:
    """What is done inside, by the training's own thread, is a phase of its own where one looks."""
    timeline = _active
    if timeline is None:
        yield
        return
    start, known = timeline._clock(), len(timeline._carved)
    try:
        yield
    finally:
        inner = sum(nanoseconds for _, nanoseconds in timeline._carved[known:])
        timeline.carve(name, timeline._clock() - start - inner)
