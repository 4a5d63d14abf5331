"""From a timeline to what people ask: how fast, how smooth, what was lost, and to what."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .blame import Slow, blame
from .log_histogram import LogHistogram
from .periods import find_period
from .stall_detector import StallDetector
from .timeline import NANO, Block, Timeline

# Iterations that a usual one is taken from, and those of a cause that a period is looked for in.
RECENT = 129
KEEP = 50  # stalls that are kept, the longest
MOST_OF_A_CAUSE = 256
MOST_CAUSES = 64
# Samples named with a period.
MOST_SAMPLES = 16
EVALUATION = 'evaluation'
# Times the median of a window: what takes longer does not count as steady.
SLOW = 1.25
EVEN = 0.10  # coefficient of variation that a training stays below


def is_even(cv: float) -> bool:
    """Whether iterations vary as little as they should."""
    return cv < EVEN


class TempoMeter:
    """Statistics over a training of any length, in fixed memory.

    Args:
        timeline: Of the training.
        facts: Names of what the timeline counts: totals, of which differences are taken.
            Defaults to ().
        categories: Of phases that are hooks; looked up when a stall is found. Defaults to None.
        factor: How many times the usual deviation an iteration must take longer to be a stall.
            Defaults to 8.0.
        keep: How many stalls are kept, the longest. Defaults to 50.
        machine: What the machine has to say of the time between two moments of
            `time.perf_counter`. Defaults to None.
        kinds_by: The phase that tells kinds of iterations apart: those with it are compared with
            each other, and so are those without. Defaults to None: all are of one kind.
    """

    def __init__(
        self,
        timeline: Timeline,
        facts: tuple[str, ...] = (),
        categories: dict[str, str] | None = None,
        factor: float = 8.0,
        keep: int = KEEP,
        machine: Callable[[float, float], dict] | None = None,
        kinds_by: str | None = None,
    ) -> None:
        self._timeline, self._facts = timeline, facts
        self._categories = {} if categories is None else categories
        self._machine, self._kinds_by = machine, kinds_by
        self._detector = StallDetector(factor)
        self._longest = _Longest(keep)
        self._lost = _Lost()
        self._taken = 0
        self._whole, self._spread = LogHistogram(), _Spread()
        self._phases: dict[str, LogHistogram] = {}

    @property
    def suspect(self) -> float:
        """Seconds from which on an iteration may turn out to be slow; 0 while that is not known."""
        return self._detector.suspect

    @property
    def lost_share(self) -> float:
        """Of all time so far, what slow iterations have lost."""
        seconds = sum(phase.total for phase in self._phases.values())
        return self._lost.seconds / seconds if seconds else 0.0

    def take(self, is_last: bool = False) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """What iterations took that have ended since the last time, and stalls found meanwhile.

        Args:
            is_last: Whether no more will come: then all of them are judged. Defaults to False.
        """
        block = self._timeline.last(self._timeline.ended - self._taken)
        self._taken = self._timeline.ended
        found = self._detector.look(block.seconds, self._kinds(block))
        stalls = self._blame(found.iterations, found.usual, found.is_slow)
        if is_last:
            rest = self._detector.flush()
            stalls += self._blame(rest.iterations, rest.usual, rest.is_slow)
        if not len(block):
            return None, stalls
        self._count(block)
        return self._figures_of(block, sum(stall['lost'] for stall in stalls)), stalls

    def summary(self, intervals: Mapping[str, int | None]) -> dict[str, Any]:
        """Over all that was taken.

        Args:
            intervals: What comes every so many iterations, by name, to find it in stalls.
        """
        seconds = sum(phase.total for phase in self._phases.values())
        lost = self._lost.seconds
        count, before = self._whole.count, self._timeline.before
        edges, counts = self._whole.bars()
        return dict(
            last_iter=before + self._timeline.ended if self._timeline.ended else None,
            iterations=count,
            seconds=seconds,
            it_per_s=_rate(count, seconds),
            steady=_rate(count, seconds - lost),
            cv=self._spread.cv,
            p50=self._whole.quantile(0.5),
            p95=self._whole.quantile(0.95),
            p99=self._whole.quantile(0.99),
            histogram=dict(edges=edges, counts=counts),
            phases={name: _of_phase(one, seconds) for name, one in self._phases.items()},
            lost=dict(
                seconds=lost,
                share=lost / seconds if seconds else 0.0,
                count=self._lost.count,
                by_cause=self._lost.by_cause,
            ),
            stalls=self._longest.all(),
            periods=self._lost.periods(intervals),
            changes=[
                dict(iter=before + change.iteration + 1, old=change.old, new=change.new)
                for change in self._detector.changes
            ],
        )

    def ring(self, most: int | None = None) -> dict[str, Any]:
        """The last iterations, phase by phase.

        Args:
            most: How many at most. Defaults to None: all that the timeline keeps.
        """
        block = self._timeline.last(self._timeline.ended if most is None else most)
        rows = zip(block.numbers.tolist(), block.starts.tolist(), block.spent.tolist())
        return dict(
            phases=list(self._timeline.names),
            rows=[[number, start, *spent] for number, start, spent in rows],
        )

    def _count(self, block: Block) -> None:
        whole = block.seconds
        if EVALUATION in self._timeline.names:
            whole = whole - block.spent[:, self._timeline.names.index(EVALUATION)]
        self._whole.add(whole)
        self._spread.add(whole)
        for name, spent in zip(self._timeline.names, block.spent.T):
            if name not in self._phases:
                self._phases[name] = LogHistogram()
            self._phases[name].add(spent[spent > 0])

    def _figures_of(self, block: Block, lost: float) -> dict[str, Any]:
        whole = block.seconds
        seconds, count = float(whole.sum()), len(block)
        spread = _Spread()
        spread.add(whole)
        p50, p95, p99 = np.quantile(whole, [0.5, 0.95, 0.99]).tolist()
        return dict(
            iter=int(block.numbers[-1]),
            iterations=count,
            seconds=seconds,
            it_per_s=_rate(count, seconds),
            steady=_rate(count, _steady_seconds(whole, self._kinds(block))),
            p50=p50,
            p95=p95,
            p99=p99,
            cv=spread.cv,
            lost=lost,
            phases=dict(zip(self._timeline.names, block.spent.sum(axis=0).tolist())),
        )

    def _blame(
        self, places: np.ndarray, usual: np.ndarray, is_slow: np.ndarray
    ) -> list[dict[str, Any]]:
        """Entries of those that are slow."""
        if not is_slow.any():
            return []
        kept = self._timeline.last(self._timeline.ended)
        first = self._timeline.ended - len(kept)
        facts, kinds = _Facts(kept.facts), self._kinds(kept)
        entries = []
        for place, seconds in zip(places[is_slow].tolist(), usual[is_slow].tolist()):
            if place >= first:
                row = place - first
                alike = np.flatnonzero(kinds == kinds[row])
                near = alike[max(0, np.searchsorted(alike, row) - RECENT) :][: RECENT + 17]
                entries.append(self._entry(kept, row, seconds, near, facts))
        for entry in entries:
            self._longest.add(entry)
            self._lost.add(entry)
        return entries

    def _entry(
        self, kept: Block, row: int, usual: float, near: np.ndarray, facts: _Facts
    ) -> dict[str, Any]:
        seconds = float(kept.seconds[row])
        start = self._timeline.began * NANO + float(kept.starts[row])
        counted, usually_counted = facts.of(row, near)
        slow = Slow(
            number=int(kept.numbers[row]),
            seconds=seconds,
            usual=usual,
            spent=self._named(self._timeline.names, kept.spent[row]),
            usually=self._named(self._timeline.names, np.median(kept.spent[near], axis=0)),
            facts=self._named(self._facts, counted),
            usual_facts=self._named(self._facts, usually_counted),
            machine={} if self._machine is None else self._machine(start, start + seconds),
            note=kept.notes[row] or {},
        )
        found = blame(slow, self._categories)
        category, cause = found.parts[0].category, found.parts[0].cause
        return dict(
            iter=slow.number,
            time=time.time() - (time.perf_counter() - start),
            seconds=seconds,
            usual=usual,
            lost=slow.lost,
            phase=found.phase,
            cause=cause,
            category=category,
            parts=[vars(part) for part in found.parts],
            text=found.text,
            evidence=found.evidence,
        )

    def _kinds(self, block: Block) -> np.ndarray:
        """Of each iteration, whether it has the phase that tells."""
        if self._kinds_by not in self._timeline.names:
            return np.zeros(len(block), bool)
        return block.spent[:, self._timeline.names.index(self._kinds_by)] > 0

    @staticmethod
    def _named(names: Any, values: np.ndarray) -> dict[str, float]:
        """Without what is not known."""
        pairs = zip(names, values.tolist())
        return {name: value for name, value in pairs if not math.isnan(value)}


def _steady_seconds(seconds: np.ndarray, kinds: np.ndarray) -> float:
    """What iterations take in all, slow ones counted as usual ones of their kind."""
    total = 0.0
    for kind in np.unique(kinds):
        alike = seconds[kinds == kind]
        usual = float(np.median(alike))
        total += float(np.where(alike > SLOW * usual, usual, alike).sum())
    return total


class _Spread:
    """Mean and deviation of as many values as there are; by Welford, block by block."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        mean, count = float(values.mean()), len(values)
        apart, total = mean - self._mean, self._count + count
        self._squares += float(((values - mean) ** 2).sum())
        self._squares += apart**2 * self._count * count / total
        self._mean += apart * count / total
        self._count = total

    @property
    def cv(self) -> float | None:
        """Deviation over mean; None of fewer than two."""
        if self._count < 2 or not self._mean:
            return None
        return math.sqrt(self._squares / self._count) / self._mean


class _Longest:
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


class _Lost:
    """What was lost, by cause."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.by_cause: dict[str, dict[str, Any]] = {}
        self._latest: dict[str, deque[tuple[int, int | None, list[int]]]] = {}

    def add(self, entry: dict) -> None:
        self.seconds += entry['lost']
        self.count += 1
        evidence = entry['evidence']
        for part in entry['parts']:
            cause = part['cause']
            if cause not in self.by_cause and len(self.by_cause) >= MOST_CAUSES:
                cause = 'other causes'
            sums = self.by_cause.setdefault(
                cause, dict(seconds=0.0, count=0, category=part['category'])
            )
            sums['seconds'] += part['seconds']
            sums['count'] += 1
            latest = self._latest.setdefault(cause, deque(maxlen=MOST_OF_A_CAUSE))
            latest.append((entry['iter'], evidence.get('worker'), _culprits(evidence)))

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


class _Facts:
    """What iterations have added to totals that are not read in each of them.

    What was added between two reads is shared among the iterations there; of one that was slow,
    it has all but what is usual of the others.

    Args:
        totals: Of each iteration in a row; nan where nobody has read them.
    """

    def __init__(self, totals: np.ndarray) -> None:
        read = np.flatnonzero(~np.isnan(totals).all(axis=1))
        apart = np.diff(read)
        self._added, self._among = np.zeros_like(totals), np.zeros(len(totals), np.int64)
        if len(apart):
            known = slice(read[0] + 1, read[-1] + 1)
            rates = np.diff(totals[read], axis=0) / apart[:, None]
            self._added[known] = np.repeat(rates, apart, axis=0)
            self._among[known] = np.repeat(apart, apart)

    def of(self, row: int, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What an iteration that was slow has added, and what those near it usually do."""
        known = near[self._among[near] > 0]
        usual = np.median(self._added[known], axis=0) if len(known) else self._added[row]
        return usual + self._among[row] * (self._added[row] - usual), usual


def _of_phase(phase: LogHistogram, seconds: float) -> dict[str, Any]:
    return dict(
        seconds=phase.total,
        share=phase.total / seconds if seconds else 0.0,
        p50=phase.quantile(0.5),
        p95=phase.quantile(0.95),
        p99=phase.quantile(0.99),
        count=phase.count,
    )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
