"""Cost of slow iterations: sums by cause."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from .periods import find_period, usual_gap

# Number of the latest records of a cause that are searched for a period.
MOST_OF_A_CAUSE = 256
MOST_CAUSES = 64
# Number of samples that are named with a period.
MOST_SAMPLES = 16


class StallTotals:
    """Sums of the lost time by cause.

    Attributes:
        seconds: Seconds lost in total.
        count: Number of slow iterations.
        by_cause: Seconds, count and category by cause.
    """

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.by_cause: dict[str, dict[str, Any]] = {}
        self._latest: dict[str, deque[tuple[int, int | None, list[int]]]] = {}

    def add(self, record: dict) -> None:
        """Add a stall record."""
        count = record.get('iterations', 1)
        self.seconds += record['lost']
        self.count += count
        evidence = record['evidence']
        for part in record['parts']:
            cause = part['cause']
            if cause not in self.by_cause and len(self.by_cause) >= MOST_CAUSES:
                cause = 'other causes'
            sums = self.by_cause.setdefault(
                cause, dict(seconds=0.0, count=0, category=part['category'])
            )
            sums['seconds'] += part['seconds']
            sums['count'] += count
            if count > 1:
                continue  # consecutive iterations have no gaps to find a period in
            latest = self._latest.setdefault(cause, deque(maxlen=MOST_OF_A_CAUSE))
            latest.append((record['iter'], evidence.get('worker'), _culprits(evidence)))

    def including(self, records: list[dict]) -> StallTotals:
        """Return a copy with these records, which are open and will be added when they end."""
        totals = copy.deepcopy(self)
        for record in records:
            totals.add(record)
        return totals

    def periods(self, intervals: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Return the causes that recur periodically.

        Args:
            intervals: Known intervals by name, in iterations; None where unknown.
        """
        found = []
        for cause, latest in self._latest.items():
            known = dict(intervals)
            if self.by_cause[cause]['category'] == 'hook':  # its interval may be in no setting
                known[''] = usual_gap([iteration for iteration, *_ in latest])
            period = find_period([iteration for iteration, *_ in latest], known)
            if period is None:
                continue
            periodic = [one for one in latest if one[0] % period.every == period.residue]
            workers = Counter(worker for _, worker, _ in periodic if worker is not None)
            samples = Counter(sample for *_, slow in periodic for sample in slow)
            found.append(
                dict(
                    every=period.every,
                    what=period.what,
                    cause=cause,
                    count=period.count,
                    of=period.of,
                    worker=workers.most_common(1)[0][0] if workers else None,
                    samples=[sample for sample, _ in samples.most_common(MOST_SAMPLES)],
                    text=f'{cause}: {period.text}',
                )
            )
        return found


def _culprits(evidence: dict) -> list[int]:
    """Return the sample that took longest; all samples of the batch where it is unknown."""
    if 'slowest_sample' in evidence:
        return [evidence['slowest_sample']]
    return evidence.get('samples', [])
