"""A ledger of a training's time: each moment belongs to one phase of one iteration."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NANO = 1e-9
FIRST = 0  # the number of the phase that an iteration begins with
# Columns of the ledger; what comes when all have a name is charged to the last one.
MOST_PHASES = 64
BEGIN = MOST_PHASES  # in the log: the first phase is over, of an iteration that begins with it


@dataclass
class Block:
    """Iterations that have ended, one after the other.

    Attributes:
        numbers: Which they are.
        starts: Seconds on the timeline's clock at which each began.
        spent: Seconds of each in each phase.
        facts: What was counted while they ran; nan where nobody has.
        notes: What else whoever measured them has to say of each.
    """

    numbers: np.ndarray
    starts: np.ndarray
    spent: np.ndarray
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

        ... mark(b) | first phase | begin ... mark(a) ... mark(b) | first phase | begin ...
                       waits for the batch                           the one before ended there

    A mark is an entry in a list, since each iteration has dozens of them; where iterations end,
    and what their phases sum to, is found when it is asked for. Memory is fixed: the last
    `capacity` iterations are kept in rings.

    Args:
        first: The phase that an iteration begins with.
        facts: How many numbers are counted for an iteration. Defaults to 0.
        capacity: How many iterations are kept. Defaults to 1024.
        clock: Gives nanoseconds; `time.perf_counter_ns` if none is given.
        before: The number of the iteration before the first one. Defaults to 0.

    Attributes:
        names: Of the phases, by their number.
        before: The number of the iteration before the first one.
        number: Of the iteration that has begun last.
        is_open: Whether that has not ended.
        opened: When it began, by the clock.
        log: What is not in the rings yet, in pairs: a phase and when it ended, or, with the
            phase's complement, how much of what is marked next belongs to that one. First of all
            is where the first iteration in it begins. It is always the same list, so
            `log += (phase, clock())` is a mark, for who has no time for a call.
    """

    def __init__(
        self,
        first: str,
        facts: int = 0,
        capacity: int = 1024,
        clock: Callable[[], int] = time.perf_counter_ns,
        before: int = 0,
    ) -> None:
        self.names: list[str] = [first]
        self.number = self.before = before
        self.clock = clock
        self.began = self.opened = clock()
        self.is_open = False
        self.log: list[int] = [FIRST, self.began]
        self._in_rings = 0  # iterations, ever
        self._capacity, self._full = capacity, before + capacity
        self._counted: dict[int, Any] = {}  # by number, what was counted
        self._noted: dict[int, Any] = {}  # and what else there is to say
        self._starts = np.zeros(capacity, np.int64)
        self._spent = np.zeros((capacity, MOST_PHASES), np.int64)
        self._facts = np.zeros((capacity, facts))
        self._notes: list[Any] = [None] * capacity

    @property
    def ended(self) -> int:
        """How many iterations have ended, ever."""
        return self.number - self.before - int(self.is_open)

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
        """All since the last mark was the first phase, of an iteration that begins with it.

        The one before has ended at that mark. Of the first, or behind `end`, all from there on.

        Returns:
            Seconds of that phase.
        """
        log, now = self.log, self.clock()
        is_usual = self.is_open and log[-2] >= 0
        log += (BEGIN, now)
        self.number += 1
        if self.number > self._full:
            self._sum_up()
        if is_usual:
            opened = self.opened = log[-3]
            return (now - opened) * NANO
        self.is_open = True
        self.opened = log[self._place() + 1]
        return self.spent(FIRST)

    def carve(self, name: str, nanoseconds: int) -> None:
        """So much of the time that is marked next belongs to another phase."""
        self.log += (~self.phase(name), nanoseconds)

    def carved(self) -> int:
        """Nanoseconds that are carved out of what is marked next, so far."""
        total, place = 0, len(self.log) - 2
        while self.log[place] < 0:
            total += self.log[place + 1]
            place -= 2
        return total

    def spent(self, phase: int) -> float:
        """Seconds of the open iteration in a phase, so far."""
        log, place = self.log, self._place()
        last, carved, total = log[place + 1], 0, 0
        for of, value in zip(log[place + 2 :: 2], log[place + 3 :: 2]):
            if of < 0:
                carved += value
                total += value * (~of == phase)
                continue
            if of % BEGIN == phase:
                total += value - last - carved
            last, carved = value, 0
        return total * NANO

    def set_facts(self, facts: Any) -> None:
        """Store counts of the open iteration; later ones replace them. No-op without one."""
        if self.is_open:
            self._counted[self.number] = facts

    def annotate(self, note: Any) -> None:
        """Attach a note to the open iteration, unless it has one. No-op without one."""
        if self.is_open:
            self._noted.setdefault(self.number, note)

    def end(self) -> None:
        """The open iteration has ended where its last mark was, and no other one begins yet."""
        self._sum_up(is_over=True)
        self.is_open = False

    def start(self) -> None:
        """Begin anew where no iteration is open: what was since the last one belongs to none."""
        self.log[:] = FIRST, self.clock()

    def last(self, count: int) -> Block:
        """The iterations that have ended last, as many as are kept."""
        self._sum_up()
        count = min(count, self._in_rings, self._capacity)
        places = np.arange(self._in_rings - count, self._in_rings)
        rows = places % self._capacity
        return Block(
            numbers=places + self.before + 1,
            starts=(self._starts[rows] - self.began) * NANO,
            spent=self._spent[rows, : len(self.names)] * NANO,
            facts=self._facts[rows],
            notes=[self._notes[row] for row in rows.tolist()],
        )

    def _place(self) -> int:
        """In the log, where the open iteration begins: the mark before its first phase."""
        log = self.log
        begins = (place for place in range(len(log) - 2, 0, -2) if log[place] == BEGIN)
        place = next(begins, 0)
        if not next(begins, 0):
            return 0
        place -= 2
        while log[place] < 0:
            place -= 2
        return place

    def _sum_up(self, is_over: bool = False) -> None:
        """Bring what has ended into the rings; the open iteration as well, if that is over."""
        pairs = np.array(self.log, np.int64).reshape(-1, 2)
        marks = np.flatnonzero(pairs[:, 0] >= 0)
        # Iterations end at the mark before the one with which the next begins; the first, at 0,
        # has all that comes before its own.
        edges = np.flatnonzero(pairs[marks, 0] == BEGIN) - 1
        edges[:1] = 0
        if is_over:
            edges = np.append(edges, len(marks) - 1)
        count = len(edges) - 1
        if count < 1:
            return
        places = np.arange(self._in_rings, self._in_rings + count)
        rows, numbers = places % self._capacity, places + self.before + 1
        self._starts[rows] = pairs[marks[edges[:-1]], 1]
        self._spent[rows] = _summed(pairs, marks, edges)
        self._facts[rows] = np.nan
        for row, number in zip(rows.tolist(), numbers.tolist()):
            self._notes[row] = self._noted.get(number)
            if number in self._counted:
                self._facts[row] = self._counted[number]
        # At last: whatever interrupts this, it can be done again.
        self.log[: 2 * marks[edges[-1]] + 1] = [FIRST]
        self._in_rings += count
        self._full += count
        for number in numbers.tolist():
            self._noted.pop(number, None)
            self._counted.pop(number, None)


def _summed(pairs: np.ndarray, marks: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Nanoseconds in each phase, from one edge to the next.

    Args:
        pairs: Of a log.
        marks: Which of them are marks.
        edges: Which of the marks are edges.
    """
    spent = np.zeros((len(edges) - 1, MOST_PHASES), np.int64)
    phase, value = pairs.T
    inside = marks[1 : edges[-1] + 1]
    row = np.repeat(np.arange(len(spent)), np.diff(edges))
    np.add.at(spent, (row, phase[inside] % BEGIN), np.diff(value[marks[: edges[-1] + 1]]))
    carved = np.flatnonzero(phase[: inside[-1]] < 0)
    out_of = np.searchsorted(inside, carved)
    np.add.at(spent, (row[out_of], ~phase[carved]), value[carved])
    np.subtract.at(spent, (row[out_of], phase[inside[out_of]] % BEGIN), value[carved])
    return spent
