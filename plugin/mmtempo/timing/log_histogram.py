"""Quantiles of a stream of values in constant memory."""

from __future__ import annotations

import math

import numpy as np


class LogHistogram:
    """Histogram with logarithmic bins.

    The relative error of a quantile is at most one bin width, 1.2 % with 200 bins per decade. It
    is much less where a bin holds several values, which are taken as evenly spread.

    ::

        bin       0          1                                    last
             |  < least  | least .. least * 10 ** (1 / per_decade) | ... |  >= most  |

    Values below `least`, zero and negative ones included, count as 0 in a quantile. Non-finite
    values are ignored.

    Args:
        least: Lowest edge. Defaults to 1e-6.
        most: Highest edge. Defaults to 1e5.
        per_decade: Number of bins per factor of ten. Defaults to 200.

    Attributes:
        count: Number of values.
        total: Sum of the values.
        least: Smallest value; None without values.
        greatest: Largest value; None without values.
    """

    def __init__(self, least: float = 1e-6, most: float = 1e5, per_decade: int = 200) -> None:
        if not (0 < least < most and per_decade >= 1):
            raise ValueError(
                f'LogHistogram needs 0 < least < most and per_decade >= 1, found '
                f'least={least}, most={most}, per_decade={per_decade}'
            )
        self._lowest, self._per_decade = least, per_decade
        inner = math.ceil(math.log10(most / least) * per_decade)
        self._counts = np.zeros(inner + 2, dtype=np.int64)
        self.count = 0
        self.total = 0.0
        self.least: float | None = None
        self.greatest: float | None = None

    def add(self, values: np.ndarray) -> None:
        """Count the values of an array of any shape."""
        values = np.asarray(values, dtype=np.float64)
        values = values[np.isfinite(values)]
        if not values.size:
            return
        least, greatest = float(values.min()), float(values.max())
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)
        self.count += values.size
        self.total += float(values.sum())
        # Zero and negative values have no logarithm: any value in the lowest bin stands for them.
        ratios = np.maximum(values, self._lowest / 2) / self._lowest
        bins = np.floor(np.log10(ratios) * self._per_decade) + 1
        bins = np.clip(bins, 0, len(self._counts) - 1).astype(np.int64)
        np.add.at(self._counts, bins, 1)

    def quantile(self, q: float) -> float | None:
        """Return a quantile as `numpy.quantile` defines it; None without values.

        Args:
            q: The quantile, from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f'q must be from 0 to 1, found {q}')
        if self.least is None or self.greatest is None:
            return None
        rank = q * (self.count - 1)
        below = self._ordered(math.floor(rank), self.least, self.greatest)
        above = self._ordered(math.ceil(rank), self.least, self.greatest)
        return below + (rank - math.floor(rank)) * (above - below)

    def bars(self, most: int = 60) -> tuple[list[float], list[int]]:
        """Return edges and counts for a chart, from the first to the last bin in use.

        Args:
            most: Maximum number of bars; neighbouring bins are merged. Defaults to 60.

        Returns:
            tuple: Edges and counts, one edge more than counts; both are empty without values.
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
        """Return the value of this rank in sorted order, from 0."""
        if rank in (0, self.count - 1):
            return greatest if rank else least
        ends = np.cumsum(self._counts)
        index = int(np.searchsorted(ends, rank, side='right'))
        if index == 0:
            value = 0.0
        else:
            before = ends[index] - self._counts[index]
            value = self._edge(index + (rank - before + 0.5) / self._counts[index])
        return min(max(value, least), greatest)

    def _edge(self, index: float) -> float:
        """Return the lower edge of a bin."""
        return float(self._lowest * 10 ** ((index - 1) / self._per_decade))
