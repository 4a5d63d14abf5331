"""Whether what is slow comes every so many iterations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmtempo.utils.units import ordinal

LEAST = 4  # stalls that a period needs
LONGEST = 512  # of periods that nobody has named
MATCH = 0.4  # share of the stalls that has to lie on a period
COVERAGE = 0.6  # share of a period's places that has to have a stall
CHANCE = 0.05  # of so few stalls at random places lying on any of the periods that are tried
NEARLY = 0.05  # by how much an unknown period has to explain more than a known one


@dataclass(frozen=True)
class Period:
    """Stalls that come every so many iterations.

    Attributes:
        every: Iterations from one to the next.
        what: The interval that has this length; None if none has.
        residue: Of an iteration that is slow, divided by `every`.
        count: Stalls that lie on it.
        of: Stalls in all.
        coverage: Share of the places, from the first to the last of them, that have a stall.
    """

    every: int
    what: str | None
    residue: int
    count: int
    of: int
    coverage: float

    def text(self, intervals: Mapping[str, int | None]) -> str:
        """As 'every 8th iteration = num_workers: 40 of 42 stalls, on 98 % of its places'."""
        return (
            f'every {ordinal(self.every)} iteration{self._name(intervals)}: {self.count} of '
            f'{self.of} stalls, on {100 * self.coverage:.0f} % of its places'
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
    """The period of stalls of one cause, or None.

    It is looked for in the iterations at which stalls begin, so that several in a row are one.

    Args:
        iterations: Those with a stall.
        intervals: What comes every so many iterations, by name; None or less than 2: never.
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
    fits = min(LONGEST - 1, span // (LEAST - 1))  # so many could be found, however few are tried
    unknown = [every for every in _gaps(starts) if every not in known]
    # What happens at log points only lies on multiples of their interval by itself.
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
    """What may be a period: the most frequent gaps, also over one or two stalls in between."""
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
    """The one that explains most."""
    found = [_candidate(starts, every, tries, lattice) for every in lengths]
    return max(filter(None, found), key=lambda one: one.score, default=None)


def _candidate(starts: np.ndarray, every: int, tries: int, lattice: int) -> _Candidate | None:
    """How well a period explains where stalls begin; None if by chance, or hardly.

    A period of 4 has all stalls of one of 8, and half of its places empty; one of 16 has no
    empty places, and half of the stalls: the product of match and coverage tells them apart.
    """
    residues, counts = np.unique(starts % every, return_counts=True)
    place = int(counts.argmax())
    residue, count = int(residues[place]), int(counts[place])
    on_it = starts[starts % every == residue]
    match = count / len(starts)
    coverage = count / (int(on_it[-1] - on_it[0]) // every + 1)
    if count < LEAST or match < MATCH or coverage < COVERAGE:
        return None
    # Chernoff's bound for so many at random places, for any residue of any period tried.
    places = max(1.0, every / lattice)
    bound = math.log(places * max(tries, 1)) - len(starts) * _divergence(match, 1 / places)
    if bound > math.log(CHANCE):
        return None
    return _Candidate(match * coverage, coverage, every, residue)


def _divergence(share: float, expected: float) -> float:
    """Of Kullback and Leibler, between two coins; 0 where it is no more than expected."""
    if share <= expected:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - expected)) if share < 1 else 0.0
    return share * math.log(share / expected) + rest
