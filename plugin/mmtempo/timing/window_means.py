"""Means over the windows of a run; a single window is too short to judge a device or a rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any


class WindowMeans:
    """Means over windows, in constant memory.

    ::

        memory.device.utilisation  -> device_busy   mean, looks
        memory.device.throttle     -> device_throttled   share of the looks by reason
        ranks                      -> ranks         by name: max, rank, min, mean, least (mean of
                                                    min), usual (the most frequent rank), often,
                                                    of (the number of windows)
    """

    def __init__(self) -> None:
        self._looked_at: Any = None
        self._busy, self._looks = 0.0, 0
        self._throttled: Counter[str] = Counter()
        self._ranks: dict[str, _Slowest] = {}

    def add(self, window: Mapping[str, Any]) -> None:
        """Add the next window; quantities that were not measured are absent from it."""
        memory = window.get('memory') or {}
        busy = (memory.get('device') or {}).get('utilisation')
        # Several short windows share one sample of the device: count the sample once.
        if busy is not None and (memory.get('time') != self._looked_at or not self._looks):
            self._looked_at = memory.get('time')
            self._busy, self._looks = self._busy + busy, self._looks + 1
            self._throttled.update(memory['device'].get('throttle') or ())
        for name, found in (window.get('ranks') or {}).items():
            self._ranks.setdefault(name, _Slowest()).add(found)

    def figures(self) -> dict[str, Any]:
        """Return the means for a summary; quantities that no window has are absent."""
        figures: dict[str, Any] = {}
        if self._looks:
            figures['device_busy'] = dict(mean=self._busy / self._looks, looks=self._looks)
        if self._throttled:
            shares = {reason: one / self._looks for reason, one in self._throttled.items()}
            figures['device_throttled'] = shares
        if self._ranks:
            figures['ranks'] = {name: one.figures() for name, one in self._ranks.items()}
        return figures


class _Slowest:
    """Time of the slowest process over the windows, and its rank."""

    def __init__(self) -> None:
        self._latest: Mapping[str, Any] = {}
        self._total = self._least = 0.0
        self._ranks: Counter[int] = Counter()

    def add(self, found: Mapping[str, Any]) -> None:
        """Add `max`, `rank` and `min` of a window."""
        self._latest = found
        self._total += found['max']
        self._least += found.get('min', math.nan)  # absent from files of older versions
        self._ranks[found['rank']] += 1

    def figures(self) -> dict[str, Any]:
        """Return the latest window, the means, and the rank that was slowest most often."""
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
