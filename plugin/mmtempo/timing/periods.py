"""Find periods in stalls: the same cause every N iterations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmtempo.utils.units import ordinal

LEAST = 4  # minimum number of stalls on a period
LONGEST = 512  # iterations of a period that is not a known interval
MATCH = 0.4  # minimum share of the stalls that are on a period
COVERAGE = 0.6  # minimum share of a period's iterations that have a stall
CHANCE = 0.05  # maximum probability that random stalls match any of the tried periods as well
NEARLY = 0.05  # by how much an unknown period must score above a known interval


@dataclass(frozen=True)
class Period:
    """Stalls that recur after a fixed number of iterations.

    Attributes:
        every: Period in iterations.
        what: Name of the known interval with this length; None if there is none.
        residue: Number of a periodic iteration modulo `every`.
        count: Number of stalls on the period.
        of: Number of all stalls.
        coverage: Share of the periodic iterations, from the first to the last stall, that have
            a stall.
    """

    every: int
    what: str | None
    residue: int
    count: int
    of: int
    coverage: float

    def text(self, intervals: Mapping[str, int | None]) -> str:
        """Return a sentence, like 'every 8th iteration = num_workers: 40 of 42 stalls'.

        It ends with the coverage: '; 98 % of these iterations stall'.
        """
        return (
            f'every {ordinal(self.every)} iteration{self._name(intervals)}: {self.count} of '
            f'{self.of} stalls; {100 * self.coverage:.0f} % of these iterations stall'
        )

    def _name(self, intervals: Mapping[str, int | None]) -> str:
        if self.what is not None:
            return f' = {self.what}'
        known = {name: length for name, length in intervals.items() if length and length > 1}
        for name, length in known.items():
            if self.every % length == 0 and self.every // length <= 4:
                return f' = {self.every // length} x {name}'
        listing = ', '.join(f'{name} {length}' for name, length in known.items())
        return f', which is none of {listing}' if listing else ''


def find_period(iterations: Sequence[int], intervals: Mapping[str, int | None]) -> Period | None:
    """Return the period of the stalls of one cause; None if there is none.

    Only first iterations of consecutive stalls are searched, so that a burst counts once.

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
    known: dict[int, str] = {}
    for name, length in intervals.items():
        if length and length > 1:
            known.setdefault(length, name)
    span = int(starts[-1] - starts[0])
    fits = min(
        LONGEST - 1, span // (LEAST - 1)
    )  # the candidates that could be found, not the few that are tried
    unknown = [every for every in _gaps(starts) if every not in known]
    # Events that happen at log points only are on multiples of the log interval by construction.
    lattice = max((length for length in known if not np.ptp(starts % length)), default=1)
    best = _best(starts, list(known), tries=len(known))
    other = _best(starts, unknown, tries=fits, lattice=lattice)
    if best is None or (other is not None and other.score > best.score + NEARLY):
        best = other
    if best is None:
        return None
    every, residue = best.every, best.residue
    count = int(lengths[starts % every == residue].sum())
    return Period(every, known.get(every), residue, count, len(stalls), best.coverage)


def _gaps(starts: np.ndarray) -> list[int]:
    """Return candidate periods: the most frequent gaps, also across one or two other stalls."""
    gaps = Counter(int(gap) for lag in (1, 2, 3) for gap in starts[lag:] - starts[:-lag])
    return [gap for gap, _ in gaps.most_common(64) if 1 < gap <= LONGEST]


class _Candidate(NamedTuple):
    score: float
    coverage: float
    every: int
    residue: int


def _best(
    starts: np.ndarray, lengths: list[int], tries: int, lattice: int = 1
) -> _Candidate | None:
    """Return the candidate that explains most."""
    found = [_candidate(starts, every, tries, lattice) for every in lengths]
    return max(filter(None, found), key=lambda one: one.score, default=None)


def _candidate(starts: np.ndarray, every: int, tries: int, lattice: int) -> _Candidate | None:
    """Score how well a period explains where stalls begin; None if poorly, or by chance.

    If the true period is 8, then a period of 4 matches all stalls with half of its iterations
    empty, and a period of 16 has no empty iterations and half of the stalls. The product of match
    and coverage distinguishes them.
    """
    residues, counts = np.unique(starts % every, return_counts=True)
    best = int(counts.argmax())
    residue, count = int(residues[best]), int(counts[best])
    matching = starts[starts % every == residue]
    match = count / len(starts)
    coverage = count / (int(matching[-1] - matching[0]) // every + 1)
    if count < LEAST or match < MATCH or coverage < COVERAGE:
        return None
    # Chernoff's bound for as many random stalls, over any residue of any period tried.
    slots = max(1.0, every / lattice)
    bound = math.log(slots * max(tries, 1)) - len(starts) * _divergence(match, 1 / slots)
    if bound > math.log(CHANCE):
        return None
    return _Candidate(match * coverage, coverage, every, residue)


def _divergence(share: float, expected: float) -> float:
    """Return the Kullback-Leibler divergence of two coins; 0 unless more than expected."""
    if share <= expected:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - expected)) if share < 1 else 0.0
    return share * math.log(share / expected) + rest
