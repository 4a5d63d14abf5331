"""Course of the usual iteration time over a run, and lasting changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

GROUP = 16  # iterations whose median is one value, so that single stalls do not count
MOST = 64  # values that are kept; then neighbours are averaged
FEWEST = 4  # values on each side of a change
LEAST = 0.10  # relative change that is reported
CLEAR = 0.9  # share of the values that must be on the right side of the middle


@dataclass(frozen=True)
class Slowdown:
    """A lasting change to slower iterations.

    Attributes:
        is_gradual: Whether the time grows evenly from the first iteration on.
        index: Index of the first slower iteration; 0 if it grows evenly.
        old: Usual seconds before, or at the beginning.
        new: Usual seconds since, or at the end.
        lost: Seconds lost against the time before.
    """

    is_gradual: bool
    index: int
    old: float
    new: float
    lost: float


class Pace:
    """Medians of consecutive iterations, in constant memory, for a run of any length.

    Attributes:
        values: Usual seconds of an iteration, of `size` iterations each.
        size: Number of iterations of each value.
    """

    def __init__(self) -> None:
        self.values: list[float] = []
        self.size = GROUP
        self._group: list[float] = []
        self._medians: list[float] = []  # of the groups of the next value

    def add(self, seconds: Sequence[float]) -> None:
        """Add the seconds of the next iterations."""
        for one in seconds:
            self._group.append(one)
            if len(self._group) == GROUP:
                self._medians.append(median(self._group))
                self._group.clear()
                if len(self._medians) * GROUP == self.size:
                    self._close()

    def _close(self) -> None:
        self.values.append(sum(self._medians) / len(self._medians))
        self._medians.clear()
        if len(self.values) == MOST:
            pairs = zip(self.values[::2], self.values[1::2])
            self.values = [(first + second) / 2 for first, second in pairs]
            self.size *= 2


def slowdown(values: Sequence[float], size: int, iterations: int = 0) -> Slowdown | None:
    """Return the lasting slowdown that explains the values best; None where there is none.

    A step separates two levels. Where a line fits better than a step, the time grows gradually.

    Args:
        values: Usual seconds of consecutive iterations, as in `Pace`.
        size: Number of iterations of each value.
        iterations: Number of all iterations, also those after the last value. Defaults to 0.
    """
    seconds = np.asarray(values, float)
    count = len(seconds)
    if count < 2 * FEWEST:
        return None
    split = min(range(FEWEST, count - FEWEST + 1), key=lambda at: _misfit(seconds, at))
    old, new = np.median(seconds[:split]), np.median(seconds[split:])
    slope, start = np.polyfit(np.arange(count), seconds, 1)
    line = start + slope * np.arange(count)
    if np.abs(seconds - line).sum() < _misfit(seconds, split):
        # From the first iteration on; where the growth is not linear, near what was measured.
        split, old, new = 0, max(line[0] - slope / 2, 0.9 * seconds.min()), line[-1]
        is_clear = seconds[-FEWEST:].min() > seconds[:FEWEST].max()
    else:
        middle = (old + new) / 2
        is_clear = np.mean((seconds > middle) == (np.arange(count) >= split)) >= CLEAR
    if not is_clear or new < (1 + LEAST) * old:
        return None
    rest = iterations - count * size  # of the next value
    rest = rest if 0 < rest < size else 0
    lost = float((seconds[split:] - old).sum() * size + (seconds[-1] - old) * rest)
    return Slowdown(not split, split * size, float(old), float(new), lost)


def _misfit(seconds: np.ndarray, at: int) -> float:
    """Return the sum of the distances from two levels that change at an index."""
    return sum(np.abs(part - np.median(part)).sum() for part in (seconds[:at], seconds[at:]))
