"""Quantiles of as many values as there are, in memory that does not grow."""

from __future__ import annotations

import math

import numpy as np


class LogHistogram:
    """Counts values in bins whose edges are apart by the same factor.

    A quantile is off by half a decade's `per_decade`-th at most: with 200 bins by 1.2 %, and by
    much less where a bin holds several values, which are taken as spread evenly.

    ::

        bin       0          1                                    last
             |  < least  | least .. least * 10 ** (1 / per_decade) | ... |  >= most  |

    What is below `least`, zeros and negatives too, counts as 0 in a quantile. What is nan was not
    measured, and is left out.

    Args:
        least: The lowest edge. Defaults to 1e-6.
        most: The highest edge. Defaults to 1e5.
        per_decade: Bins for a factor of ten. Defaults to 200.
    """

    def __init__(self, least: float = 1e-6, most: float = 1e5, per_decade: int = 200) -> None:
        if not (0 < least < most and per_decade >= 1):
            raise ValueError(
                f'LogHistogram needs 0 < least < most and at least one bin a decade, found '
                f'least={least}, most={most}, per_decade={per_decade}'
            )
        self._lowest, self._per_decade = least, per_decade
        inner = math.ceil(math.log10(most / least) * per_decade)
        self._counts = np.zeros(inner + 2, dtype=np.int64)
        self.count = 0
        self.total = 0.0
        self.least: float | None = None
        self.greatest: float | None = None

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def add(self, values: np.ndarray) -> None:
        """Count values, of any shape."""
        values = np.asarray(values, dtype=np.float64)
        values = values[np.isfinite(values)]
        if not values.size:
            return
        least, greatest = float(values.min()), float(values.max())
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)
        self.count += values.size
        self.total += float(values.sum())
        # Anything below the lowest edge will do for what has no logarithm.
        ratios = np.maximum(values, self._lowest / 2) / self._lowest
        places = np.floor(np.log10(ratios) * self._per_decade) + 1
        places = np.clip(places, 0, len(self._counts) - 1).astype(np.int64)
        np.add.at(self._counts, places, 1)

    def quantile(self, q: float) -> float | None:
        """The value below which a share `q` lies, as by `numpy.quantile`; None without values."""
        if not 0 <= q <= 1:
            raise ValueError(f'a quantile is asked for by a share from 0 to 1, found {q}')
        if self.least is None or self.greatest is None:
            return None
        rank = q * (self.count - 1)
        below = self._ordered(math.floor(rank), self.least, self.greatest)
        above = self._ordered(math.ceil(rank), self.least, self.greatest)
        return below + (rank - math.floor(rank)) * (above - below)

    def bars(self, most: int = 60) -> tuple[list[float], list[int]]:
        """Edges and counts for a chart: from the first to the last bin in use, in few bars.

        Args:
            most: Bars at most; neighbours are taken together. Defaults to 60.

        Returns:
            One edge more than there are counts; both are empty without values.
        """
        used = np.flatnonzero(self._counts)
        if not used.size:
            return [], []
        first, last = int(used[0]), int(used[-1])
        width = -(-(last + 1 - first) // most)
        counts = np.add.reduceat(self._counts[: last + 1], np.arange(first, last + 1, width))
        edges = [self._edge(first + width * number) for number in range(len(counts) + 1)]
        return edges, counts.tolist()

    def _ordered(self, rank: int, least: float, greatest: float) -> float:
        """The value that has so many below it."""
        if rank in (0, self.count - 1):
            return greatest if rank else least
        ends = np.cumsum(self._counts)
        place = int(np.searchsorted(ends, rank, side='right'))
        if place == 0:
            value = 0.0
        else:
            before = ends[place] - self._counts[place]
            value = self._edge(place + (rank - before + 0.5) / self._counts[place])
        return min(max(value, least), greatest)

    def _edge(self, place: float) -> float:
        return float(self._lowest * 10 ** ((place - 1) / self._per_decade))
