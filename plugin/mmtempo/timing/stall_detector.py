"""Which iterations were slow for their kind, whatever the level that they run at."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .level_shift import SlowSpan, SpanTracker

FIRST = 20  # iterations of a kind that make its first baseline
ENOUGH = 10  # that do so where no more come for long
GROUP = 16  # the latest of a kind: they decide whether its level has changed
AGREEING = 12  # how many of them have to lie close to each other
PATIENCE = 320  # iterations; nothing older is held back
STEP = 64  # iterations after which that is looked at again
HELD = 64  # iterations of a level that others are compared with: a short fast one is none
MARGIN = 1e-3  # seconds; what is less is no stall, however fast the others are
NEARLY = 0.8  # of what is too much: what is still less is not even suspect
SPREAD = 1.4826  # a normal distribution's standard deviation, by its median absolute deviation


class Judged(NamedTuple):
    """What has been decided: places in the stream from 0, usual seconds, and whether slow.

    In the order in which it was decided. `usual` is nan where too few of a kind were seen.
    """

    iterations: np.ndarray
    usual: np.ndarray
    is_slow: np.ndarray


class LevelChange(NamedTuple):
    """From this iteration on its kind takes another time, in seconds."""

    iteration: int
    old: float
    new: float


class StallDetector:
    """Compares each iteration with the usual of its kind.

    Slow is what is above the median by `factor` robust standard deviations, by a share of
    `least`, and by a millisecond. Each iteration is judged once:

    ::

        not slow, most of all           at once
        slow                            when 16 more of its kind have come: if 12 of 16 lie close
                                        to each other it was a change of level, and no stall
        among the first 20 of a kind    when there are 20, by their median
        any                             384 iterations later at the latest

    A level that has risen above one that had lasted is a spell, until it is back or rises
    further; its cost is added up.

    What it finds does not depend on how the stream is cut into blocks.

    Args:
        factor: Robust standard deviations that are still usual. Defaults to 8.0.
        least: Share of the usual time that is no stall. Defaults to 0.25.
        window: Iterations of a kind, before its latest 16, that make the baseline.
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
        self._spells: list[SlowSpan] = []

    @property
    def suspect(self) -> float:
        """Seconds from which on the next ones may turn out to be slow; 0 while none is known.

        Of the kind that takes least, with some room for what is usual to become less: where it
        becomes a quarter less, what is slow then may not be suspect until this is asked again.
        """
        usual = min((kind.usual for kind in self._kinds.values() if kind.usual), default=0.0)
        return usual + NEARLY * max(self._rule.least * usual, MARGIN) if usual else 0.0

    def look(self, seconds: np.ndarray, kinds: np.ndarray) -> Judged:
        """Take the next iterations; returns those that are decided now.

        Args:
            seconds: Of each iteration as a whole.
            kinds: A small number for each: iterations of one kind do the same work.
        """
        if len(seconds) != len(kinds):
            raise ValueError(f'{len(seconds)} iterations, but {len(kinds)} kinds')
        judged: list[_Judgement] = []
        for value, number in zip(np.asarray(seconds).tolist(), np.asarray(kinds).tolist()):
            kind = self._kinds.get(number)
            if kind is None:
                kind = _Kind(self._rule, self._window, self._changes, self._spells)
                self._kinds[number] = kind
            kind.take(self._seen, value, judged)
            self._seen += 1
            if not self._seen % STEP:
                self._settle(self._seen - PATIENCE, judged)
        return _arrays(judged)

    def flush(self) -> Judged:
        """Decide what is held back, by what is known; as at the end of a run."""
        judged: list[_Judgement] = []
        self._settle(self._seen, judged)
        self._spells += self.open_spells()
        for kind in self._kinds.values():
            kind.pace.usual = None
        return _arrays(judged)

    def take_changes(self) -> list[LevelChange]:
        """Of the level, found since this was asked last."""
        changes, self._changes[:] = list(self._changes), []
        return changes

    def take_spells(self) -> list[SlowSpan]:
        """Those that have ended since this was asked last, at a `flush` all."""
        spells, self._spells[:] = list(self._spells), []
        return spells

    def open_spells(self) -> list[SlowSpan]:
        """Those that go on, as far as they have come."""
        return [kind.pace.so_far() for kind in self._kinds.values() if kind.pace.is_slow]

    def accept(self, change: LevelChange) -> None:
        """It has risen for a reason that is no loss: from now on that is what is usual."""
        for kind in self._kinds.values():
            if kind.pace.is_slow and kind.pace.first == change.iteration:
                kind.pace.end()
                kind.held = None

    def _settle(self, before: int, judged: list[_Judgement]) -> None:
        for kind in self._kinds.values():
            kind.settle(before, judged)


_Judgement = tuple[int, float, bool]


def _arrays(judged: list[_Judgement]) -> Judged:
    places, usual, is_slow = zip(*judged) if judged else ((), (), ())
    return Judged(np.array(places, np.int64), np.array(usual, float), np.array(is_slow, bool))


class _Window:
    """The last values, also in order."""

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
        """Standard deviation as the middle of the values has it."""
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
            return False  # nearly always; the spread takes longer to find
        # Of fewer values the spread is known badly.
        factor = self.factor * max(1.0, FIRST / len(window))
        return seconds > usual + factor * window.spread()

    def has_moved(self, window: _Window, latest: _Window) -> bool:
        """Whether a median, which varies less than single values, is a different one."""
        old, new = window.median(), latest.median()
        apart = abs(new - old)
        if apart <= MARGIN or apart <= self.least * min(old, new):
            return False
        return apart > 2 * window.spread()


class _Seen(NamedTuple):
    iteration: int
    seconds: float
    usual: float
    waits: bool  # for its judgement
    counts: float  # seconds that it has in a spell: a slow one is told by itself


class _Kind:
    """Iterations of one kind.

    ::

        first 20 ----------+
                           v
        each --> latest 16 --> window of 129: the baseline
                     |            ^
                     +------------+  12 that agree on another level begin it anew
    """

    def __init__(
        self, rule: _Rule, window: int, changes: list[LevelChange], spells: list[SlowSpan]
    ) -> None:
        self._rule, self._changes, self._spells = rule, changes, spells
        self.pace = SpanTracker(rule.least)
        self.held: float | None = None  # the level before, that had lasted
        self._first: list[_Seen] = []
        self._window, self._group = _Window(window), _Window(GROUP)
        self._latest: deque[_Seen] = deque()
        self._counted = 0  # of the latest, those that the window has already

    @property
    def usual(self) -> float:
        """Seconds; 0 while too few were seen."""
        return self._window.median() if self._window else 0.0

    def take(self, iteration: int, seconds: float, judged: list[_Judgement]) -> None:
        """The next iteration of this kind."""
        if not self._window:
            self._first.append(_Seen(iteration, seconds, math.nan, True, seconds))
            if len(self._first) == FIRST:
                self._begin(judged)
            return
        self._enter(_Seen(iteration, seconds, math.nan, True, seconds), judged)
        if len(self._latest) >= AGREEING and self._rule.has_moved(self._window, self._group):
            self._move(judged)

    def settle(self, before: int, judged: list[_Judgement]) -> None:
        """Hold back nothing that is older."""
        if self._first and self._first[0].iteration < before:
            if len(self._first) >= ENOUGH:
                self._begin(judged)
            else:
                self._first = [self._give_up(seen, before, judged) for seen in self._first]
        for place, seen in enumerate(self._latest):
            if seen.waits and seen.iteration < before:
                judged.append((seen.iteration, seen.usual, True))
                self._latest[place] = seen._replace(waits=False)

    def _give_up(self, seen: _Seen, before: int, judged: list[_Judgement]) -> _Seen:
        """Too few are known to say anything; its seconds still help to find the baseline."""
        if not seen.waits or seen.iteration >= before:
            return seen
        judged.append((seen.iteration, math.nan, False))
        return seen._replace(waits=False)

    def _begin(self, judged: list[_Judgement]) -> None:
        for seen in self._first:
            self._window.add(seen.seconds)
        self._counted = len(self._first)
        for seen in self._first:
            self._enter(seen, judged)
        self._first = []

    def _enter(self, seen: _Seen, judged: list[_Judgement]) -> None:
        """Compare with the baseline; what is slow waits among the latest."""
        usual, is_slow = self._window.median(), self._rule.is_slow(seen.seconds, self._window)
        if seen.waits and not is_slow:
            judged.append((seen.iteration, usual, False))
        if len(self._latest) == GROUP:
            self._leave(judged)
        counts = usual if is_slow else seen.seconds
        waits = seen.waits and is_slow
        self._latest.append(_Seen(seen.iteration, seen.seconds, usual, waits, counts))
        self._group.add(seen.seconds)
        self.pace.add(seen.iteration, counts)

    def _leave(self, judged: list[_Judgement]) -> None:
        """The oldest of the latest: no change of level can claim it any more."""
        seen = self._latest.popleft()
        if seen.waits:
            judged.append((seen.iteration, seen.usual, True))
        if self._counted:
            self._counted -= 1
        else:
            self._window.add(seen.seconds)
            if self.pace.is_back(self._window.median()):  # little by little
                self._spells.append(self.pace.end())

    def _move(self, judged: list[_Judgement]) -> None:
        """Begin the baseline anew, if the latest agree on one."""
        old, new = self._window.median(), self._group.median()
        band = min(abs(new - old) / 2, self._rule.least * new)
        near = [seen for seen in self._latest if abs(seen.seconds - new) <= band]
        if len(near) < AGREEING:
            return
        start = near[0].iteration
        self._changes.append(LevelChange(start, old, new))
        if len(self._window) >= HELD and not self.pace.is_slow:
            self.held = old
        self._window.clear()
        for seen in self._latest:
            if seen.iteration >= start:
                self._window.add(seen.seconds)
        usual = self._window.median()
        counts: list[tuple[_Seen, float]] = []  # from the start on, what each counts with
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
        """What a level that has changed means for a spell that goes on, or begins now."""
        pace, usual = self.pace, self.pace.usual or self.held
        if pace.is_slow and new < old and not pace.is_back(new):
            for seen, counts in since:
                pace.correct(counts - seen.counts)
            return
        if pace.is_slow:
            pace.drop(start, [seen.counts for seen, _ in since])
            self._spells.append(pace.end())
        if usual is not None and new > usual * (1 + self._rule.least):
            pace.begin(start, usual)
            for seen, counts in since:
                pace.add(seen.iteration, counts)
