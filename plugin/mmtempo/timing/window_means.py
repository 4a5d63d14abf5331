"""What the windows of a run say together: a single one says little of a device, or of a rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any


class WindowMeans:
    """Takes windows one by one, in memory that does not grow.

    ::

        memory.device.utilisation  -> device_busy   mean, looks
        ranks                      -> ranks         by name: max, rank, min, mean, least (the mean
                                                    of min), usual, often, of
    """

    def __init__(self) -> None:
        self._looked_at: Any = None
        self._busy, self._looks = 0.0, 0
        self._ranks: dict[str, _Slowest] = {}

    def add(self, window: Mapping[str, Any]) -> None:
        """The next window; what was not measured is not in it."""
        memory = window.get('memory') or {}
        busy = (memory.get('device') or {}).get('utilisation')
        # Short windows have the same sample.
        if busy is not None and (memory.get('time') != self._looked_at or not self._looks):
            self._looked_at = memory.get('time')
            self._busy, self._looks = self._busy + busy, self._looks + 1
        for name, found in (window.get('ranks') or {}).items():
            self._ranks.setdefault(name, _Slowest()).add(found)

    def figures(self) -> dict[str, Any]:
        """For a summary; nothing of what no window has."""
        found: dict[str, Any] = {}
        if self._looks:
            found['device_busy'] = dict(mean=self._busy / self._looks, looks=self._looks)
        if self._ranks:
            found['ranks'] = {name: one.figures() for name, one in self._ranks.items()}
        return found


class _Slowest:
    """How long the slowest process took, and which one it was."""

    def __init__(self) -> None:
        self._latest: Mapping[str, Any] = {}
        self._total = self._least = 0.0
        self._ranks: Counter[int] = Counter()

    def add(self, found: Mapping[str, Any]) -> None:
        """`max`, `rank` and `min` of a window."""
        self._latest = found
        self._total += found['max']
        self._least += found.get('min', math.nan)  # windows of before did not have it
        self._ranks[found['rank']] += 1

    def figures(self) -> dict[str, Any]:
        """The latest; the mean of all; and which process it usually was, how often of how many."""
        of = self._ranks.total()
        ((usual, often),) = self._ranks.most_common(1)
        return dict(
            self._latest,
            mean=self._total / of,
            usual=usual,
            often=often,
            of=of,
            **({} if math.isnan(self._least) else dict(least=self._least / of)),
        )
