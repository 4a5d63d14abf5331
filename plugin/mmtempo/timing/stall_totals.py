"""What slow iterations have cost: the worst of them, and sums by cause."""

from __future__ import annotations

import copy
import heapq
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from .periods import find_period

# Entries of a cause that a period is looked for in.
MOST_OF_A_CAUSE = 256
MOST_CAUSES = 64
# Samples named with a period.
MOST_SAMPLES = 16


class LongestStalls:
    """The stalls that have lost most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[float, int, dict]] = []
        self._seen = 0

    def add(self, entry: dict) -> None:
        self._seen += 1
        heapq.heappush(self._heap, (entry['lost'], -self._seen, entry))
        if len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def all(self) -> list[dict]:
        return [entry for *_, entry in sorted(self._heap, key=lambda one: one[:2], reverse=True)]


class StallTotals:
    """What was lost, by cause."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.by_cause: dict[str, dict[str, Any]] = {}
        self._latest: dict[str, deque[tuple[int, int | None, list[int]]]] = {}

    def add(self, entry: dict) -> None:
        count = entry.get('iterations', 1)
        self.seconds += entry['lost']
        self.count += count
        evidence = entry['evidence']
        for part in entry['parts']:
            cause = part['cause']
            if cause not in self.by_cause and len(self.by_cause) >= MOST_CAUSES:
                cause = 'other causes'
            sums = self.by_cause.setdefault(
                cause, dict(seconds=0.0, count=0, category=part['category'])
            )
            sums['seconds'] += part['seconds']
            sums['count'] += count
            if count > 1:
                continue  # one after the other: there is no gap between them
            latest = self._latest.setdefault(cause, deque(maxlen=MOST_OF_A_CAUSE))
            latest.append((entry['iter'], evidence.get('worker'), _culprits(evidence)))

    def including(self, entries: list[dict]) -> StallTotals:
        """A copy with these as well, which may have to be added once more when they have ended."""
        found = copy.deepcopy(self)
        for entry in entries:
            found.add(entry)
        return found

    def periods(self, intervals: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Causes that come every so many iterations."""
        found = []
        for cause, latest in self._latest.items():
            period = find_period([iteration for iteration, *_ in latest], intervals)
            if period is None:
                continue
            on_it = [one for one in latest if one[0] % period.every == period.residue]
            workers = Counter(worker for _, worker, _ in on_it if worker is not None)
            samples = Counter(sample for *_, made in on_it for sample in made)
            found.append(
                dict(
                    every=period.every,
                    what=period.what,
                    cause=cause,
                    count=period.count,
                    of=period.of,
                    worker=workers.most_common(1)[0][0] if workers else None,
                    samples=[sample for sample, _ in samples.most_common(MOST_SAMPLES)],
                    text=f'{cause}: {period.text(intervals)}',
                )
            )
        return found


def _culprits(evidence: dict) -> list[int]:
    """The sample that took longest, or where that is not known, all of its batch."""
    if 'slowest_sample' in evidence:
        return [evidence['slowest_sample']]
    return evidence.get('samples', [])
