"""Find periods in stalls: the same cause at each evaluation, at each batch of one worker, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmtempo.utils.units import ordinal

LEAST = 4  # minimum number of stalls on a period
MATCH = 0.4  # minimum share of the stalls that are on a period
# Minimum share of a period's iterations that have a stall. It excludes chance as well: random
# stalls that are not consecutive cover at most half of the iterations of a short interval.
COVERAGE = 0.6


@dataclass(frozen=True)
class Period:
    """Stalls that recur after a known interval.

    Attributes:
        every: Period in iterations.
        what: Name of the interval; empty for one that is not in the settings.
        residue: Number of a periodic iteration modulo `every`.
        count: Number of stalls on the period.
        of: Number of all stalls.
        coverage: Share of the periodic iterations, from the first to the last stall, that have
            a stall.
    """

    every: int
    what: str
    residue: int
    count: int
    of: int
    coverage: float

    @property
    def text(self) -> str:
        """Return a sentence, like 'every 8th iteration = num_workers: 40 of 42 stalls'.

        It ends with the coverage: '; 98 % of these iterations stall'.
        """
        what = f' = {self.what}' if self.what else ''
        return (
            f'every {ordinal(self.every)} iteration{what}: {self.count} of {self.of} '
            f'stalls; {100 * self.coverage:.0f} % of these iterations stall'
        )


def usual_gap(iterations: Sequence[int]) -> int | None:
    """Return the most frequent distance between stalls of one cause; None for fewer than two."""
    gaps, counts = np.unique(np.diff(np.unique(iterations)), return_counts=True)
    return int(gaps[counts.argmax()]) if len(gaps) else None


def find_period(iterations: Sequence[int], intervals: Mapping[str, int | None]) -> Period | None:
    """Return the interval that explains most stalls of one cause; None if none explains them.

    Only first iterations of consecutive stalls are searched, so that a burst counts once.
    If the true period is 8, then an interval of 4 matches all stalls with half of its iterations
    empty, and one of 16 has no empty iterations and half of the stalls. The product of match and
    coverage distinguishes them.

    Args:
        iterations: Numbers of the iterations with a stall.
        intervals: Known intervals by name, in iterations; None or less than 2 is ignored.
    """
    stalls = np.unique(np.asarray(iterations, dtype=np.int64))
    if len(stalls) < LEAST:
        return None
    is_start = np.diff(stalls, prepend=stalls[0] - 2) > 1
    starts = stalls[is_start]
    lengths = np.diff(np.append(np.flatnonzero(is_start), len(stalls)))
    best, best_score = None, 0.0
    for name, every in intervals.items():
        if not every or every < 2:
            continue
        residues, counts = np.unique(starts % every, return_counts=True)
        residue, count = int(residues[counts.argmax()]), int(counts.max())
        is_on = starts % every == residue
        match = count / len(starts)
        coverage = count / (int(np.ptp(starts[is_on])) // every + 1)
        is_period = count >= LEAST and match >= MATCH and coverage >= COVERAGE
        if is_period and match * coverage > best_score:
            best_score = match * coverage
            best = Period(every, name, residue, int(lengths[is_on].sum()), len(stalls), coverage)
    return best
