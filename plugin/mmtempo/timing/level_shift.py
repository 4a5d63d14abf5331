"""What it costs where iterations take longer than before, for a while or for good."""

from __future__ import annotations

from typing import NamedTuple


class SlowSpan(NamedTuple):
    """Iterations of a kind, one after the other, that took longer than those before.

    Attributes:
        first: Place of the first one in the stream.
        last: Of the last one.
        iterations: How many they were.
        usual: Seconds that such iterations took before.
        lost: Seconds beyond that, of all of them; but for what single ones among them took more
            than the others, which are slow for themselves.
        is_over: Whether others have followed that take what was usual before.
    """

    first: int
    last: int
    iterations: int
    usual: float
    lost: float
    is_over: bool


class SpanTracker:
    """Adds up a spell, from when the level has risen until it is back.

    ::

        seconds          ________
                  ______|  lost  |______
        usual           begin    end

    A level that falls, but not as far, belongs to the same spell.

    Args:
        least: Share of the usual time that is as usual.

    Attributes:
        first: The iteration that the last spell began with.
        usual: Seconds that iterations took before the spell that goes on; None where none does.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self.usual: float | None = None
        self.first = self._last = self._count = 0
        self._lost = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether a spell goes on."""
        return self.usual is not None

    def begin(self, iteration: int, usual: float) -> None:
        """The level has risen with this iteration, which is not added yet."""
        self.usual, self.first, self._count, self._lost = usual, iteration, 0, 0.0

    def add(self, iteration: int, seconds: float) -> None:
        """The next one; does nothing where no spell goes on."""
        if self.usual is not None:
            self._last = iteration
            self._count += 1
            self._lost += seconds - self.usual

    def correct(self, seconds: float) -> None:
        """Of one that was added, so much more counts."""
        self._lost += seconds

    def drop(self, before: int, seconds: list[float]) -> None:
        """Those from this place on were added, but are as usual again."""
        self._last = before - 1
        self._count -= len(seconds)
        self._lost -= sum(seconds) - len(seconds) * (self.usual or 0.0)

    def is_back(self, level: float) -> bool:
        """Whether that is what was usual before."""
        return self.usual is not None and level <= self.usual * (1 + self._least)

    def so_far(self) -> SlowSpan:
        """The spell that goes on."""
        assert self.usual is not None
        return SlowSpan(self.first, self._last, self._count, self.usual, self._lost, False)

    def end(self) -> SlowSpan:
        """It is over."""
        spell = self.so_far()._replace(is_over=True)
        self.usual = None
        return spell
