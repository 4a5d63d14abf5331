"""Cost of spans in which iterations take longer than before, for a while or until the end."""

from __future__ import annotations

from typing import NamedTuple


class SlowSpan(NamedTuple):
    """Consecutive iterations of a kind that took longer than those before.

    Attributes:
        first: Index of the first iteration in the stream.
        last: Index of the last iteration.
        iterations: Number of iterations.
        usual: Seconds that such iterations took before.
        lost: Seconds lost in total, without the excess of single stalls in the span, which are
            reported separately.
        is_over: Whether later iterations took the usual time again.
    """

    first: int
    last: int
    iterations: int
    usual: float
    lost: float
    is_over: bool


class SpanTracker:
    """Sum of the time lost from when the level rises until it is back.

    ::

        seconds          ________
                  ______|  lost  |______
        usual           begin    end

    A level that falls, but not as far as the usual one, belongs to the same span.

    Args:
        least: Share of the usual time by which a level may differ and still counts as usual.

    Attributes:
        first: Index of the iteration with which the last span began.
        usual: Seconds that iterations took before the open span; None without an open span.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self.usual: float | None = None
        self.first = self._last = self._count = 0
        self._lost = 0.0

    @property
    def is_slow(self) -> bool:
        """Return whether a span is open."""
        return self.usual is not None

    def begin(self, iteration: int, usual: float) -> None:
        """Open a span at this iteration, without adding the iteration itself."""
        self.usual, self.first, self._count, self._lost = usual, iteration, 0, 0.0

    def add(self, iteration: int, seconds: float) -> None:
        """Add the next iteration. No-op without an open span."""
        if self.usual is not None:
            self._last = iteration
            self._count += 1
            self._lost += seconds - self.usual

    def correct(self, seconds: float) -> None:
        """Add seconds to an iteration that was added before."""
        self._lost += seconds

    def drop(self, before: int, seconds: list[float]) -> None:
        """Remove iterations that were added but belong to the next level.

        Args:
            before: Index of the first one to remove; the last ones are removed.
            seconds: Seconds with which each was added.
        """
        self._last = before - 1
        self._count -= len(seconds)
        self._lost -= sum(seconds) - len(seconds) * (self.usual or 0.0)

    def is_back(self, level: float) -> bool:
        """Return whether a level is the usual one again."""
        return self.usual is not None and level <= self.usual * (1 + self._least)

    def so_far(self) -> SlowSpan:
        """Return the open span."""
        assert self.usual is not None
        return SlowSpan(self.first, self._last, self._count, self.usual, self._lost, False)

    def end(self) -> SlowSpan:
        """Close the span and return it."""
        span = self.so_far()._replace(is_over=True)
        self.usual = None
        return span
