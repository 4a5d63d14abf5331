"""Detect iterations that were slow for their kind, at any level of speed."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .level_shift import SlowSpan, SpanTracker

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


class Judged(NamedTuple):
    """Judgements, in the order in which they were made.

    Attributes:
        iterations: Indices in the stream, from 0.
        usual: Usual seconds; nan where too few iterations of the kind were seen.
        is_slow: Whether each iteration was slow.
    """

    iterations: np.ndarray
    usual: np.ndarray
    is_slow: np.ndarray


class LevelChange(NamedTuple):
    """Change of the usual time of a kind.

    Attributes:
        iteration: Index of the first iteration at the new level.
        old: Usual seconds before.
        new: Usual seconds from this iteration on.
    """

    iteration: int
    old: float
    new: float


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

    A level that rises above a lasting one begins a slow span, until it is back or rises further;
    the lost time is summed up.

    The result does not depend on how the stream is split into blocks.

    Args:
        factor: Number of robust standard deviations that are still usual. Defaults to 8.0.
        least: Share of the usual time by which an iteration may exceed it without being slow.
            Defaults to 0.25.
        window: Number of iterations of a kind, before its latest 16, that form the baseline.
            Defaults to 129.
    """

    def __init__(self, factor: float = 8.0, least: float = 0.25, window: int = 129) -> None:
        if factor <= 0 or least <= 0 or window < FIRST:
            raise ValueError(
                f'StallDetector needs factor > 0, least > 0 and window >= {FIRST}, found '
                f'factor={factor}, least={least}, window={window}'
            )
        self._rule, self._window = _Rule(factor, least), window
        self._kinds: dict[int, _Kind] = {}
        self._seen = 0
        self._changes: list[LevelChange] = []
        self._spans: list[SlowSpan] = []

    @property
    def suspect(self) -> float:
        """Return the seconds from which on an iteration may be judged slow; 0 while unknown.

        It is the threshold of the fastest kind, with a margin for a falling level. If the level
        falls by a quarter, slow iterations may stay below it until the property is read again.
        """
        usual = min((kind.usual for kind in self._kinds.values() if kind.usual), default=0.0)
        return usual + NEARLY * max(self._rule.least * usual, MARGIN) if usual else 0.0

    def look(self, seconds: np.ndarray, kinds: np.ndarray) -> Judged:
        """Take the next iterations; return the judgements made now.

        Args:
            seconds: Total seconds of each iteration.
            kinds: Small integer for each iteration; iterations of one kind do the same work.
        """
        if len(seconds) != len(kinds):
            raise ValueError(
                f'seconds and kinds must have one length, found {len(seconds)} and {len(kinds)}'
            )
        judged: list[_Judgement] = []
        for value, number in zip(np.asarray(seconds).tolist(), np.asarray(kinds).tolist()):
            kind = self._kinds.get(number)
            if kind is None:
                kind = _Kind(self._rule, self._window, self._changes, self._spans)
                self._kinds[number] = kind
            kind.take(self._seen, value, judged)
            self._seen += 1
            if not self._seen % STEP:
                self._settle(self._seen - PATIENCE, judged)
        return _arrays(judged)

    def flush(self) -> Judged:
        """Judge all deferred iterations by what is known, as at the end of a run."""
        judged: list[_Judgement] = []
        self._settle(self._seen, judged)
        self._spans += self.open_spans()
        for kind in self._kinds.values():
            kind.span.usual = None
        return _arrays(judged)

    def take_changes(self) -> list[LevelChange]:
        """Return the changes of the level found since the last call."""
        changes, self._changes[:] = list(self._changes), []
        return changes

    def take_spans(self) -> list[SlowSpan]:
        """Return the slow spans that have ended since the last call; after `flush`, all."""
        spans, self._spans[:] = list(self._spans), []
        return spans

    def open_spans(self) -> list[SlowSpan]:
        """Return the slow spans that have not ended, up to the last iteration."""
        return [kind.span.so_far() for kind in self._kinds.values() if kind.span.is_slow]

    def accept(self, change: LevelChange) -> None:
        """Take the new level as the usual one, because its reason is no loss."""
        for kind in self._kinds.values():
            if kind.span.is_slow and kind.span.first == change.iteration:
                kind.span.end()
                kind.held = None

    def _settle(self, before: int, judged: list[_Judgement]) -> None:
        for kind in self._kinds.values():
            kind.settle(before, judged)


_Judgement = tuple[int, float, bool]


def _arrays(judged: list[_Judgement]) -> Judged:
    indices, usual, is_slow = zip(*judged) if judged else ((), (), ())
    return Judged(np.array(indices, np.int64), np.array(usual, float), np.array(is_slow, bool))


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


class _Seen(NamedTuple):
    iteration: int
    seconds: float
    usual: float
    waits: bool  # the judgement is deferred
    counts: float  # seconds within a slow span: a stall counts as usual, it has its own record


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
        self, rule: _Rule, window: int, changes: list[LevelChange], spans: list[SlowSpan]
    ) -> None:
        self._rule, self._changes, self._spans = rule, changes, spans
        self.span = SpanTracker(rule.least)
        self.held: float | None = None  # the last level that lasted at least HELD iterations
        self._first: list[_Seen] = []
        self._window, self._group = _Window(window), _Window(GROUP)
        self._latest: deque[_Seen] = deque()
        self._counted = 0  # number of the latest that the window already contains

    @property
    def usual(self) -> float:
        """Return the usual seconds; 0 while too few iterations were seen."""
        return self._window.median() if self._window else 0.0

    def take(self, iteration: int, seconds: float, judged: list[_Judgement]) -> None:
        """Add the next iteration of this kind."""
        if not self._window:
            self._first.append(_Seen(iteration, seconds, math.nan, True, seconds))
            if len(self._first) == FIRST:
                self._begin(judged)
            return
        self._enter(_Seen(iteration, seconds, math.nan, True, seconds), judged)
        if len(self._latest) >= AGREEING and self._rule.has_moved(self._window, self._group):
            self._move(judged)

    def settle(self, before: int, judged: list[_Judgement]) -> None:
        """Judge the deferred iterations before this index."""
        if self._first and self._first[0].iteration < before:
            if len(self._first) >= ENOUGH:
                self._begin(judged)
            else:
                self._first = [self._give_up(seen, before, judged) for seen in self._first]
        for index, seen in enumerate(self._latest):
            if seen.waits and seen.iteration < before:
                judged.append((seen.iteration, seen.usual, True))
                self._latest[index] = seen._replace(waits=False)

    def _give_up(self, seen: _Seen, before: int, judged: list[_Judgement]) -> _Seen:
        """Judge without a baseline, as not slow; the seconds still count for the baseline."""
        if not seen.waits or seen.iteration >= before:
            return seen
        judged.append((seen.iteration, math.nan, False))
        return seen._replace(waits=False)

    def _begin(self, judged: list[_Judgement]) -> None:
        """Form the baseline from the first iterations, and judge them by it."""
        for seen in self._first:
            self._window.add(seen.seconds)
        self._counted = len(self._first)
        for seen in self._first:
            self._enter(seen, judged)
        self._first = []

    def _enter(self, seen: _Seen, judged: list[_Judgement]) -> None:
        """Compare with the baseline; defer the judgement of a slow iteration."""
        usual, is_slow = self._window.median(), self._rule.is_slow(seen.seconds, self._window)
        if seen.waits and not is_slow:
            judged.append((seen.iteration, usual, False))
        if len(self._latest) == GROUP:
            self._leave(judged)
        counts = usual if is_slow else seen.seconds
        waits = seen.waits and is_slow
        self._latest.append(_Seen(seen.iteration, seen.seconds, usual, waits, counts))
        self._group.add(seen.seconds)
        self.span.add(seen.iteration, counts)

    def _leave(self, judged: list[_Judgement]) -> None:
        """Judge the oldest of the latest, which no change of level can include any more."""
        seen = self._latest.popleft()
        if seen.waits:
            judged.append((seen.iteration, seen.usual, True))
        if self._counted:
            self._counted -= 1
        else:
            self._window.add(seen.seconds)
            if self.span.is_back(self._window.median()):  # gradually, without a change of level
                self._spans.append(self.span.end())

    def _move(self, judged: list[_Judgement]) -> None:
        """Restart the baseline if the latest iterations agree on a level."""
        old, new = self._window.median(), self._group.median()
        band = min(abs(new - old) / 2, self._rule.least * new)
        near = [seen for seen in self._latest if abs(seen.seconds - new) <= band]
        if len(near) < AGREEING:
            return
        start = near[0].iteration
        self._changes.append(LevelChange(start, old, new))
        if len(self._window) >= HELD and not self.span.is_slow:
            self.held = old
        self._window.clear()
        for seen in self._latest:
            if seen.iteration >= start:
                self._window.add(seen.seconds)
        usual = self._window.median()
        counts: list[tuple[_Seen, float]] = []  # seconds within a slow span, from `start` on
        for seen in self._latest:
            if seen.iteration < start:
                if seen.waits:
                    judged.append((seen.iteration, seen.usual, True))
                continue
            if seen.waits:
                is_slow = self._rule.is_slow(seen.seconds, self._window)
                judged.append((seen.iteration, usual, is_slow))
                counts.append((seen, usual if is_slow else seen.seconds))
            else:
                counts.append((seen, seen.counts))
        self._count(start, old, usual, counts)
        self._latest.clear()
        self._group.clear()
        self._counted = 0

    def _count(self, start: int, old: float, new: float, since: list[tuple[_Seen, float]]) -> None:
        """Continue, end or begin a slow span after a change of the level."""
        span, usual = self.span, self.span.usual or self.held
        if span.is_slow and new < old and not span.is_back(new):
            for seen, counts in since:
                span.correct(counts - seen.counts)
            return
        if span.is_slow:
            span.drop(start, [seen.counts for seen, _ in since])
            self._spans.append(span.end())
        if usual is not None and new > usual * (1 + self._rule.least):
            span.begin(start, usual)
            for seen, counts in since:
                span.add(seen.iteration, counts)
