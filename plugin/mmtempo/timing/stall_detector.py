"""Detect iterations that were slow for their kind, at any level of speed."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from .level_shift import LevelChange, SlowSpan

FIRST = 20  # iterations of a kind that form its first baseline
ENOUGH = 10  # iterations that form it where no more come for long
GROUP = 16  # latest iterations of a kind, which decide whether its level has changed
AGREEING = 12  # how many of them must be close to each other
PATIENCE = 320  # iterations after which a judgement is no longer deferred
STEP = 64  # iterations between two checks of PATIENCE
HELD = 64  # iterations that a level must last to be a reference for slow spans
MARGIN = 1e-3  # seconds; a smaller excess is no stall, however fast the iterations are
NEARLY = 0.8  # share of the stall threshold from which on an iteration is suspect
SPREAD = 1.4826  # standard deviation over median absolute deviation, of a normal distribution
_T = TypeVar('_T')


class Stall(NamedTuple):
    """Iteration that was slow for its kind.

    Attributes:
        iteration: Index in the stream, from 0.
        usual: Usual seconds of its kind.
    """

    iteration: int
    usual: float


class StallDetector:
    """Detector of iterations that are slow compared with the usual time of their kind.

    An iteration is slow if it exceeds the median by `factor` robust standard deviations, by the
    share `least`, and by one millisecond. Each iteration is judged once:

    ::

        not slow (most iterations)      at once
        slow                            after 16 more of its kind: if 12 of 16 are close to each
                                        other, the level has changed, and it is no stall
        one of the first 20 of a kind   when there are 20, by their median
        any                             after 384 iterations at the latest

    A level that rises above a lasting one begins a slow span, until it is back or rises further.
    An iteration is added to a span when its level is known: after 16 more, or with a change.

    The result does not depend on how the stream is split into blocks.

    Args:
        factor: Number of robust standard deviations that are still usual. Defaults to 8.0.
        least: Share of the usual time by which an iteration may exceed it without being slow.
            Defaults to 0.25.
        window: Number of iterations of a kind, before its latest 16, that form the baseline.
            Defaults to 129.
        on_change: Called with each change of the level; returns whether the time at a slower
            level is lost. Defaults to None: it always is.
    """

    def __init__(
        self,
        factor: float = 8.0,
        least: float = 0.25,
        window: int = 129,
        on_change: Callable[[LevelChange], bool] | None = None,
    ) -> None:
        if factor <= 0 or least <= 0 or window < FIRST:
            raise ValueError(
                f'StallDetector needs factor > 0, least > 0 and window >= {FIRST}, found '
                f'factor={factor}, least={least}, window={window}'
            )
        self._rule, self._window = _Rule(factor, least), window
        self._on_change = on_change or (lambda change: True)
        self._kinds: dict[int, _Kind] = {}
        self._seen = 0
        self._stalls: list[Stall] = []
        self._spans: list[SlowSpan] = []

    @property
    def suspect(self) -> float:
        """Return the seconds from which on an iteration may be judged slow; 0 while unknown.

        It is the threshold of the fastest kind, with a margin for a falling level. If the level
        falls by a quarter, slow iterations may stay below it until the property is read again.
        """
        usual = min((kind.usual for kind in self._kinds.values() if kind.usual), default=0.0)
        return usual + NEARLY * max(self._rule.least * usual, MARGIN) if usual else 0.0

    def look(self, seconds: np.ndarray, kinds: np.ndarray) -> list[Stall]:
        """Take the next iterations; return the stalls found now, also earlier ones.

        Args:
            seconds: Total seconds of each iteration.
            kinds: Small integer for each iteration; iterations of one kind do the same work.
        """
        if len(seconds) != len(kinds):
            raise ValueError(
                f'seconds and kinds must have one length, found {len(seconds)} and {len(kinds)}'
            )
        for value, number in zip(np.asarray(seconds).tolist(), np.asarray(kinds).tolist()):
            kind = self._kinds.get(number)
            if kind is None:
                kind = self._kinds[number] = _Kind(
                    self._rule, self._window, self._on_change, self._stalls, self._spans
                )
            kind.take(_Seen(self._seen, value))
            self._seen += 1
            if not self._seen % STEP:
                self._settle(self._seen - PATIENCE)
        return _emptied(self._stalls)

    def flush(self) -> list[Stall]:
        """Judge all deferred iterations by what is known, as at the end of a run."""
        self._settle(self._seen)
        self._spans += self.open_spans()
        for kind in self._kinds.values():
            kind.span = None
        return _emptied(self._stalls)

    def take_spans(self) -> list[SlowSpan]:
        """Return the slow spans that have ended since the last call; after `flush`, all."""
        return _emptied(self._spans)

    def open_spans(self) -> list[SlowSpan]:
        """Return the slow spans that have not ended, up to the last iteration."""
        spans = [kind.span_so_far() for kind in self._kinds.values()]
        return [span for span in spans if span is not None]

    def _settle(self, before: int) -> None:
        for kind in self._kinds.values():
            kind.settle(before)


def _emptied(found: list[_T]) -> list[_T]:
    taken, found[:] = list(found), []
    return taken


class _Window:
    """Last values of a stream, in arrival order and sorted."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._values) == self._size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        self._values.clear()
        self._sorted.clear()

    def median(self) -> float:
        return _middle(self._sorted)

    def spread(self) -> float:
        """Return the robust standard deviation, from the median absolute deviation."""
        median = self.median()
        return SPREAD * _middle(sorted([abs(value - median) for value in self._sorted]))


def _middle(ordered: list[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


@dataclass(frozen=True)
class _Rule:
    factor: float
    least: float

    def is_slow(self, seconds: float, window: _Window) -> bool:
        usual = window.median()
        if seconds <= usual * (1 + self.least) or seconds <= usual + MARGIN:
            return False  # most iterations: skip the spread, which takes longer to compute
        # The spread of few values is a poor estimate: require a larger excess.
        factor = self.factor * max(1.0, FIRST / len(window))
        return seconds > usual + factor * window.spread()

    def has_moved(self, window: _Window, latest: _Window) -> bool:
        """Return whether the median, which varies less than single values, has changed."""
        old, new = window.median(), latest.median()
        apart = abs(new - old)
        if apart <= MARGIN or apart <= self.least * min(old, new):
            return False
        return apart > 2 * window.spread()


@dataclass
class _Seen:
    iteration: int
    seconds: float
    usual: float = math.nan
    is_slow: bool = True
    waits: bool = True  # the judgement is deferred

    @property
    def counts(self) -> float:
        """Seconds within a slow span: a stall has its own record, so it counts as usual."""
        return self.usual if self.is_slow else self.seconds


class _Kind:
    """Baseline and latest iterations of one kind.

    ::

        first 20 ----------+
                           v
        each --> latest 16 --> window of 129: the baseline
                     |            ^
                     +------------+  12 that agree on another level restart it
    """

    def __init__(
        self,
        rule: _Rule,
        window: int,
        on_change: Callable[[LevelChange], bool],
        stalls: list[Stall],
        spans: list[SlowSpan],
    ) -> None:
        self._rule, self._on_change, self._stalls, self._spans = rule, on_change, stalls, spans
        self.span: SlowSpan | None = None
        # The last level that lasted, with which spans are compared; not updated within a span.
        self._held = math.inf
        self._first: list[_Seen] = []
        self._window, self._group = _Window(window), _Window(GROUP)
        self._latest: deque[_Seen] = deque()
        self._counted = 0  # number of the latest that the window already contains

    @property
    def usual(self) -> float:
        """Return the usual seconds; 0 while too few iterations were seen."""
        return self._window.median() if self._window else 0.0

    def take(self, seen: _Seen) -> None:
        """Add the next iteration of this kind."""
        if not self._window:
            self._first.append(seen)
            if len(self._first) == FIRST:
                self._begin()
            return
        self._enter(seen)
        if len(self._latest) >= AGREEING and self._rule.has_moved(self._window, self._group):
            self._move()

    def settle(self, before: int) -> None:
        """Judge the deferred iterations before this index."""
        if len(self._first) >= ENOUGH and self._first[0].iteration < before:
            self._begin()
        for seen in self._first:  # without a baseline: no stalls
            seen.waits &= seen.iteration >= before
        for seen in self._latest:
            if seen.iteration < before:
                self._judge(seen)

    def span_so_far(self) -> SlowSpan | None:
        """Return a copy of the open span, with the latest iterations; None without an open one."""
        if self.span is None:
            return None
        span = replace(self.span)
        for seen in self._latest:
            span.add(seen.iteration, seen.counts)
        return span

    def _begin(self) -> None:
        """Form the baseline from the first iterations, and judge them by it."""
        for seen in self._first:
            self._window.add(seen.seconds)
        self._counted = len(self._first)
        for seen in self._first:
            self._enter(seen)
        self._first = []

    def _enter(self, seen: _Seen) -> None:
        """Compare with the baseline; defer the judgement of a slow iteration."""
        self._compare(seen)
        if len(self._latest) == GROUP:
            self._leave()
        self._latest.append(seen)
        self._group.add(seen.seconds)

    def _compare(self, seen: _Seen) -> None:
        seen.usual = self._window.median()
        seen.is_slow = self._rule.is_slow(seen.seconds, self._window)
        seen.waits &= seen.is_slow

    def _judge(self, seen: _Seen) -> None:
        if seen.waits:
            self._stalls.append(Stall(seen.iteration, seen.usual))
            seen.waits = False

    def _leave(self) -> None:
        """Judge the oldest of the latest, which no change of level can include any more."""
        seen = self._latest.popleft()
        self._judge(seen)
        if self.span is not None:
            self.span.add(seen.iteration, seen.counts)
        if self._counted:
            self._counted -= 1
        else:
            self._window.add(seen.seconds)
            if not self._is_slow(self._window.median()):  # gradually, without a change of level
                self._end_span()

    def _move(self) -> None:
        """Restart the baseline if the latest iterations agree on a level."""
        old, new = self._window.median(), self._group.median()
        band = min(abs(new - old) / 2, self._rule.least * new)
        near = [seen for seen in self._latest if abs(seen.seconds - new) <= band]
        if len(near) < AGREEING:
            return
        change = LevelChange(near[0].iteration, old, new)
        while self._latest[0] is not near[0]:
            self._leave()
        self._begin_or_end_span(change)
        self._window.clear()
        for seen in self._latest:
            self._window.add(seen.seconds)
        for seen in self._latest:
            if seen.waits:
                self._compare(seen)
                self._judge(seen)
            if self.span is not None:
                self.span.add(seen.iteration, seen.counts)
        self._latest.clear()
        self._group.clear()
        self._counted = 0

    def _begin_or_end_span(self, change: LevelChange) -> None:
        """Compare the new level with the last one that lasted."""
        is_loss = self._on_change(change)
        if self.span is None and len(self._window) >= HELD:
            self._held = change.old
        is_slow = self._is_slow(change.new)
        if is_slow and self.span is not None and change.new < change.old:
            return  # falls, but not as far as the usual level
        self._end_span()
        if is_slow and is_loss:
            self.span = SlowSpan(change.iteration, self._held)
        elif is_slow:
            self._held = change.new

    def _is_slow(self, level: float) -> bool:
        return level > self._held * (1 + self._rule.least)

    def _end_span(self) -> None:
        if self.span is not None:
            self._spans.append(replace(self.span, is_over=True))
            self.span = None
