"""From a timeline to what people ask: how fast, how smooth, what was lost, and to what."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .causes import NEW_SHAPE
from .level_shift import SlowSpan
from .log_histogram import LogHistogram
from .stall_detector import StallDetector
from .stall_records import History, StallRecords
from .stall_totals import LongestStalls, StallTotals
from .timeline import Block, Timeline

KEEP = 50  # stalls that are kept, the longest
MOST_CHANGES = 64
EVALUATION = 'evaluation'
# Times the median of a window: what takes longer does not count as steady.
SLOW = 1.25
EVEN = 0.10  # coefficient of variation that a training stays below


def is_even(cv: float) -> bool:
    """Whether iterations vary as little as they should."""
    return cv < EVEN


class IterationStats:
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
        self._timeline, self._kinds_by = timeline, kinds_by
        categories = {} if categories is None else categories
        self._entries = StallRecords(timeline, facts, categories, machine)
        self._detector = StallDetector(factor)
        self._longest = LongestStalls(keep)
        self._lost = StallTotals()
        self._taken = 0
        self._changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
        self._new_changes: list[dict[str, Any]] = []
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
        lost = self._lost.seconds + sum(one.lost for one in self._detector.open_spells())
        return lost / seconds if seconds else 0.0

    def take(self, is_last: bool = False) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """What iterations took that have ended since the last time, and stalls found meanwhile.

        Args:
            is_last: Whether no more will come: then all of them are judged. Defaults to False.
        """
        block = self._timeline.last(self._timeline.ended - self._taken)
        self._taken = self._timeline.ended
        found = self._detector.look(block.seconds, self._kinds(block))
        stalls = self._blame(found.iterations, found.usual, found.is_slow)
        accepted = self._note_changes()
        if is_last:
            rest = self._detector.flush()
            stalls += self._blame(rest.iterations, rest.usual, rest.is_slow)
        lost = sum(stall['lost'] for stall in stalls)  # slow spells are older than this window
        spells = self._detector.take_spells()
        stalls += self._keep(self._of_spells(one for one in spells if one.first not in accepted))
        if not len(block):
            return None, stalls
        self._count(block)
        return self._figures_of(block, lost), stalls

    def take_changes(self) -> list[dict[str, Any]]:
        """Of the pace, found by `take` since this was asked last."""
        changes, self._new_changes = self._new_changes, []
        return changes

    def summary(self, intervals: Mapping[str, int | None]) -> dict[str, Any]:
        """Over all that was taken.

        Args:
            intervals: What comes every so many iterations, by name, to find it in stalls.
        """
        seconds = sum(phase.total for phase in self._phases.values())
        spells = self._of_spells(self._detector.open_spells())
        whole = self._lost.including(spells) if spells else self._lost
        lost = whole.seconds
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
                count=whole.count,
                by_cause=whole.by_cause,
            ),
            stalls=sorted([*spells, *self._longest.all()], key=lambda one: -one['lost']),
            periods=self._lost.periods(intervals),
            changes=list(self._changes),
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
        whole = self._without_evaluation(block)
        self._whole.add(whole)
        self._spread.add(whole)
        for name, spent in zip(self._timeline.names, block.spent.T):
            if name not in self._phases:
                self._phases[name] = LogHistogram()
            self._phases[name].add(spent[spent > 0])

    def _without_evaluation(self, block: Block) -> np.ndarray:
        if EVALUATION not in self._timeline.names:
            return block.seconds
        return block.seconds - block.spent[:, self._timeline.names.index(EVALUATION)]

    def _figures_of(self, block: Block, lost: float) -> dict[str, Any]:
        whole = block.seconds
        seconds, count = float(whole.sum()), len(block)
        spread, trained = _Spread(), self._without_evaluation(block)
        spread.add(trained)
        p50, p95, p99 = np.quantile(trained, [0.5, 0.95, 0.99]).tolist()
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
        kept = self._kept()
        pairs = zip(places[is_slow].tolist(), usual[is_slow].tolist())
        found = [self._entries.of_one(kept, place, seconds) for place, seconds in pairs]
        return self._keep([entry for entry in found if entry is not None])

    def _keep(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in entries:
            self._longest.add(entry)
            self._lost.add(entry)
        return entries

    def _kept(self) -> History:
        block = self._timeline.last(self._timeline.ended)
        return History(block, self._kinds(block), self._timeline.ended - len(block))

    def _note_changes(self) -> set[int]:
        """Of the pace; where slower ones begin that are no loss, since more is asked for."""
        changes = self._detector.take_changes()
        accepted: set[int] = set()
        if not changes:
            return accepted
        kept = self._kept()
        for change in changes:
            entry = self._entries.of_change(kept, change)
            if any(part['cause'] == NEW_SHAPE for part in entry.get('parts', ())):
                self._detector.accept(change)
                accepted.add(change.iteration)
            self._changes.append(entry)
            self._new_changes.append(entry)
        return accepted

    def _of_spells(self, spells: Iterable[SlowSpan]) -> list[dict[str, Any]]:
        found = (one for one in spells if one.iterations > 1 and one.lost > 0)
        return [self._entries.of_spell(one, self._changes) for one in found]

    def _kinds(self, block: Block) -> np.ndarray:
        """Of each iteration, whether it has the phase that tells."""
        if self._kinds_by not in self._timeline.names:
            return np.zeros(len(block), bool)
        return block.spent[:, self._timeline.names.index(self._kinds_by)] > 0


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
