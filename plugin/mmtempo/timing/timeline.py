"""Ledger of training time: each moment belongs to one phase of one iteration."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NANO = 1e-9
FIRST = 0  # number of the phase with which an iteration begins
# Columns of the ledger; phases beyond are charged to the last one.
MOST_PHASES = 64
BEGIN = MOST_PHASES  # in the log: end of the first phase of an iteration


@dataclass
class Block:
    """Consecutive iterations that have ended.

    Attributes:
        numbers: Number of each iteration.
        starts: Start of each iteration, in seconds since the timeline was created.
        spent: Seconds by iteration and phase.
        facts: Counts by iteration; nan where they were not read.
        notes: Note attached to each iteration; None where there is none.
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
        """Return the total seconds of each iteration."""
        return self.spent.sum(axis=1)


class Timeline:
    """Ledger that charges the time between two marks to a phase.

    The phases of an iteration sum to its time::

        ... mark(b) | first phase | begin ... mark(a) ... mark(b) | first phase | begin ...
                     waits for the batch                         ^ the previous iteration ended

    An iteration has dozens of marks, so a mark only appends to a list. The ends of iterations and
    the sums of their phases are computed on request. Memory is constant: the last `capacity`
    iterations are kept in ring buffers.

    Args:
        first: Name of the phase with which an iteration begins.
        facts: Number of counts per iteration. Defaults to 0.
        capacity: Number of iterations kept. Defaults to 1024.
        clock: Clock in nanoseconds, `time.perf_counter_ns` by default.
        before: Number of the last iteration before this timeline. Defaults to 0.

    Attributes:
        names: Names of the phases, by phase number.
        before: Number of the last iteration before this timeline.
        number: Number of the iteration that began last.
        is_open: Whether that iteration has not ended.
        opened: Time on the clock at which it began.
        log: Entries that are not in the ring buffers yet, as a flat list of pairs: a phase and
            the time of its end, or the complement of a phase and the nanoseconds that belong to
            it out of the next marked phase. The first pair is the start of the first iteration in
            the list. The list object never changes, so that `log += (phase, clock())` is a mark
            without a function call.
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
        self._in_rings = 0  # number of iterations since the start
        self._capacity, self._full = capacity, before + capacity
        self._counted: dict[int, Any] = {}  # counts by iteration number
        self._noted: dict[int, Any] = {}  # notes by iteration number
        self._starts = np.zeros(capacity, np.int64)
        self._spent = np.zeros((capacity, MOST_PHASES), np.int64)
        self._facts = np.zeros((capacity, facts))
        self._notes: list[Any] = [None] * capacity

    @property
    def ended(self) -> int:
        """Return the number of iterations that have ended since the start."""
        return self.number - self.before - int(self.is_open)

    def phase(self, name: str) -> int:
        """Return the number of a phase; register the name if it is new."""
        if name in self.names:
            return self.names.index(name)
        if len(self.names) == MOST_PHASES - 1:
            name = 'other'
        elif len(self.names) == MOST_PHASES:
            return MOST_PHASES - 1
        self.names.append(name)
        return len(self.names) - 1

    def mark(self, phase: int) -> None:
        """Charge the time since the last mark to a phase, except for what was carved out of it."""
        self.log += (phase, self.clock())

    def begin(self) -> float:
        """Begin an iteration: charge the time since the last mark to its first phase.

        The previous iteration ended at that mark. The first iteration, and one after `end`, also
        gets all marks since the start or the `end`.

        Returns:
            float: Seconds of the first phase.
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
        self.opened = log[self._start_of_open() + 1]
        return self.spent(FIRST)

    def carve(self, name: str, nanoseconds: int) -> None:
        """Attribute a part of the time that is marked next to another phase."""
        self.log += (~self.phase(name), nanoseconds)

    def carved(self) -> int:
        """Return the nanoseconds carved out of the time that is marked next, so far."""
        total, index = 0, len(self.log) - 2
        while self.log[index] < 0:
            total += self.log[index + 1]
            index -= 2
        return total

    def spent(self, phase: int) -> float:
        """Return the seconds of the open iteration in a phase, so far."""
        log, start = self.log, self._start_of_open()
        last, carved, total = log[start + 1], 0, 0
        for entry, value in zip(log[start + 2 :: 2], log[start + 3 :: 2]):
            if entry < 0:
                carved += value
                total += value * (~entry == phase)
                continue
            if entry % BEGIN == phase:
                total += value - last - carved
            last, carved = value, 0
        return total * NANO

    def set_facts(self, facts: Any) -> None:
        """Store the counts of the open iteration, replacing earlier ones.

        No-op without an open iteration.
        """
        if self.is_open:
            self._counted[self.number] = facts

    def annotate(self, note: Any) -> None:
        """Attach a note to the open iteration, unless it has one.

        No-op without an open iteration.
        """
        if self.is_open:
            self._noted.setdefault(self.number, note)

    def end(self) -> None:
        """End the open iteration at its last mark, without beginning another one."""
        self._sum_up(is_over=True)
        self.is_open = False

    def start(self) -> None:
        """Drop the time since the last iteration; call it while no iteration is open."""
        self.log[:] = FIRST, self.clock()

    def last(self, count: int) -> Block:
        """Return the last iterations that have ended, at most as many as are kept."""
        self._sum_up()
        count = min(count, self._in_rings, self._capacity)
        indices = np.arange(self._in_rings - count, self._in_rings)
        rows = indices % self._capacity
        return Block(
            numbers=indices + self.before + 1,
            starts=(self._starts[rows] - self.began) * NANO,
            spent=self._spent[rows, : len(self.names)] * NANO,
            facts=self._facts[rows],
            notes=[self._notes[row] for row in rows.tolist()],
        )

    def _start_of_open(self) -> int:
        """Return the index in the log of the mark before the first phase of the open iteration."""
        log = self.log
        begins = (index for index in range(len(log) - 2, 0, -2) if log[index] == BEGIN)
        index = next(begins, 0)
        if not next(begins, 0):
            return 0
        index -= 2
        while log[index] < 0:
            index -= 2
        return index

    def _sum_up(self, is_over: bool = False) -> None:
        """Move ended iterations from the log to the ring buffers; with `is_over`, all of them."""
        pairs = np.array(self.log, np.int64).reshape(-1, 2)
        marks = np.flatnonzero(pairs[:, 0] >= 0)
        # An iteration ends at the mark before the one with which the next begins; the first
        # iteration, at 0, has all marks before its own.
        edges = np.flatnonzero(pairs[marks, 0] == BEGIN) - 1
        edges[:1] = 0
        if is_over:
            edges = np.append(edges, len(marks) - 1)
        count = len(edges) - 1
        if count < 1:
            return
        indices = np.arange(self._in_rings, self._in_rings + count)
        rows, numbers = indices % self._capacity, indices + self.before + 1
        self._starts[rows] = pairs[marks[edges[:-1]], 1]
        self._spent[rows] = _summed(pairs, marks, edges)
        self._facts[rows] = np.nan
        for row, number in zip(rows.tolist(), numbers.tolist()):
            self._notes[row] = self._noted.get(number)
            if number in self._counted:
                self._facts[row] = self._counted[number]
        # The log is cut last, so that a call after an interrupt repeats the work without loss.
        self.log[: 2 * marks[edges[-1]] + 1] = [FIRST]
        self._in_rings += count
        self._full += count
        for number in numbers.tolist():
            self._noted.pop(number, None)
            self._counted.pop(number, None)


def _summed(pairs: np.ndarray, marks: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the nanoseconds in each phase, from one edge to the next.

    Args:
        pairs: Pairs of a log.
        marks: Indices of the pairs that are marks.
        edges: Indices of the marks at which iterations start and end.
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
