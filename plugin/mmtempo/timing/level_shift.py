"""Changes of the usual time of iterations, and the time lost at a slower level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass
class SlowSpan:
    """Consecutive iterations of a kind that took longer than those before.

    ::

        seconds          ________
                  ______|  lost  |______
        usual          first    last

    A level that falls, but not as far as the usual one, belongs to the same span.

    Attributes:
        first: Index of the first iteration in the stream.
        usual: Seconds that such iterations took before.
        last: Index of the last iteration.
        iterations: Number of iterations.
        lost: Seconds lost in total, without the excess of single stalls in the span, which are
            reported separately.
        is_over: Whether later iterations took the usual time again.
    """

    first: int
    usual: float
    last: int = 0
    iterations: int = 0
    lost: float = 0.0
    is_over: bool = False

    def add(self, iteration: int, seconds: float) -> None:
        """Add the next iteration."""
        self.last = iteration
        self.iterations += 1
        self.lost += seconds - self.usual
