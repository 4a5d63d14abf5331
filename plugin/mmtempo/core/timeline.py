"""A ledger of a training's time: each moment belongs to one phase of one iteration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

NANO = 1e-9
FIRST = 0  # the number of the phase that an iteration begins with
# Number, start, kind, facts, note, and length of what it has in the log.
_Closed = tuple[int, int, int, Any, Any, int]
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

    A mark is an entry in a list, since each iteration has dozens of them; what they sum to is
    found when it is asked for. Memory is fixed: the last `capacity` iterations are kept in rings.

    Args:
        first: The phase between two iterations.
        facts: How many numbers are counted for each iteration. Defaults to 0.
        capacity: How many iterations are kept. Defaults to 1024.
        clock: Gives nanoseconds; `time.perf_counter_ns` if none is given.

    Attributes:
        names: Of the phases, by their number.
        ended: How many iterations have ended, ever.
        opened: When the open iteration began, by the clock.
        log: Of the iterations that are not in the rings yet, the open one last, in pairs: a phase
            and when it ended, or, with the phase's complement, how much of what is marked next
            belongs to that one. It is always the same list, so `log += (phase, clock())` is a
            mark, for who has no time for a call.
    """

    def __init__(
        self,
        first: str,
        facts: int = 0,
        capacity: int = 1024,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.names: list[str] = [first]
        self.ended = 0
        self.clock = clock
        self.log: list[int] = []
        self._capacity = capacity
        self._closed: list[_Closed] = []  # of what is not in the rings
        self._place = 0  # in the log, of what belongs to the open iteration
        self._numbers = np.zeros(capacity, np.int64)
        self._starts = np.zeros(capacity, np.int64)
        self._spent = np.zeros((capacity, MOST_PHASES), np.int64)
        self._kinds = np.zeros(capacity, np.int8)
        self._facts = np.zeros((capacity, facts))
        self._notes: list[Any] = [None] * capacity
        self.began = self.opened = clock()

    def phase(self, name: str) -> int:
        """The number of a phase; a new one where there was none of that name."""
        if name in self.names:
            return self.names.index(name)
        if len(self.names) == MOST_PHASES - 1:
            name = 'other'
        elif len(self.names) == MOST_PHASES:
            return MOST_PHASES - 1
        self.names.append(name)
        return len(self.names) - 1

    def mark(self, phase: int) -> None:
        """All since the last mark was this phase, but for what was carved out of it."""
        self.log += (phase, self.clock())

    def begin(self) -> float:
        """An iteration begins: all up to now was its first phase; returns seconds of that."""
        now = self.clock()
        self.log += (FIRST, now)
        # More than this mark is there only where something was carved out of the phase.
        is_all = len(self.log) == self._place + 2
        return (now - self.opened) * NANO if is_all else self.spent(FIRST)

    def carve(self, name: str, nanoseconds: int) -> None:
        """So much of the time that is marked next belongs to another phase."""
        self.log += (~self.phase(name), nanoseconds)

    def carved(self) -> int:
        """Nanoseconds that are carved out of what is marked next, so far."""
        total = 0
        for place in range(len(self.log) - 2, self._place - 1, -2):
            if self.log[place] >= 0:
                break
            total += self.log[place + 1]
        return total

    def spent(self, phase: int) -> float:
        """Seconds of the open iteration in a phase, so far."""
        log, last, carved, total = self.log, self.opened, 0, 0
        for place in range(self._place, len(log), 2):
            of, value = log[place], log[place + 1]
            if of < 0:
                carved += value
                total += value * (~of == phase)
                continue
            if of == phase:
                total += value - last - carved
            last, carved = value, 0
        return total * NANO

    def close(self, number: int, kind: int = 0, facts: Any = None, note: Any = None) -> None:
        """End an iteration where its last mark was; what followed is the next one's first phase.

        Args:
            number: Of the iteration.
            kind: Those it is compared with have the same. Defaults to 0.
            facts: What was counted for it. Defaults to None: nobody has.
            note: Kept with it. Defaults to None.
        """
        log, start = self.log, self._place
        end = len(log)
        while end > start and log[end - 2] < 0:  # carved out of what has not been marked yet
            end -= 2
        self._closed.append((number, self.opened, kind, facts, note, end - start))
        if end > start:
            self.opened, self._place = log[end - 1], end
        self.ended += 1
        if len(self._closed) == self._capacity:
            self._sum_up()

    def start(self) -> None:
        """Begin anew: what was before belongs to no iteration."""
        del self.log[self._place :]
        self.opened = self.clock()

    def last(self, count: int) -> Block:
        """The iterations that have ended last, as many as are kept."""
        self._sum_up()
        rows = self._rows(min(count, self.ended))
        return Block(
            numbers=self._numbers[rows],
            starts=(self._starts[rows] - self.began) * NANO,
            spent=self._spent[rows, : len(self.names)] * NANO,
            kinds=self._kinds[rows],
            facts=self._facts[rows],
            notes=[self._notes[row] for row in rows.tolist()],
        )

    def _rows(self, count: int) -> np.ndarray:
        """Of the last iterations, in the rings."""
        return np.arange(self.ended - min(count, self._capacity), self.ended) % self._capacity

    def _sum_up(self) -> None:
        """Bring what has ended into the rings."""
        if not self._closed:
            return
        numbers, starts, kinds, facts, notes, lengths = zip(*self._closed)
        rows = self._rows(len(self._closed))
        self._numbers[rows], self._starts[rows], self._kinds[rows] = numbers, starts, kinds
        marks = np.array(self.log[: self._place], np.int64).reshape(-1, 2)
        self._spent[rows] = _summed(marks, np.array(lengths) // 2, self._starts[rows])
        self._facts[rows] = np.nan
        for row, counted, note in zip(rows.tolist(), facts, notes):
            self._notes[row] = note
            if counted is not None:
                self._facts[row] = counted
        self._closed.clear()
        del self.log[: self._place]
        self._place = 0


def _summed(pairs: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Nanoseconds of each iteration in each phase, from its marks."""
    spent = np.zeros((len(lengths), MOST_PHASES), np.int64)
    phase, value = pairs[:, 0], pairs[:, 1]
    row = np.repeat(np.arange(len(lengths)), lengths)
    marks, carved = np.flatnonzero(phase >= 0), np.flatnonzero(phase < 0)
    ends, rows = value[marks], row[marks]
    is_first = np.diff(rows, prepend=-1) > 0
    before = np.where(is_first, starts[rows], np.concatenate([ends[:1], ends[:-1]]))
    np.add.at(spent, (rows, phase[marks]), ends - before)
    np.add.at(spent, (row[carved], ~phase[carved]), value[carved])
    out_of = phase[marks[np.searchsorted(marks, carved)]]
    np.subtract.at(spent, (row[carved], out_of), value[carved])
    return spent


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
    start, before = timeline.clock(), timeline.carved()
    try:
        yield
    finally:
        inner = timeline.carved() - before
        timeline.carve(name, timeline.clock() - start - inner)
