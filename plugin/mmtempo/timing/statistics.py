"""Statistics of iterations: speed, evenness, and the time lost to each cause."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .causes import NEW_SHAPE
from .level_shift import LevelChange, SlowSpan
from .log_histogram import LogHistogram
from .pace import Pace
from .stall_detector import Stall, StallDetector
from .stall_records import History, StallRecords
from .stall_totals import StallTotals
from .timeline import FIRST, Block, Timeline

KEEP = 50  # number of longest stalls that are kept
MOST_CHANGES = 64
EVALUATION = 'evaluation'
SLOW = 1.25  # multiple of the median of a window above which an iteration is not steady
ENOUGH = 20  # iterations for such a median; a shorter window shares that of earlier ones
EVEN = 0.10  # coefficient of variation below which a training is even


def is_even(cv: float) -> bool:
    """Return whether a coefficient of variation is below the target."""
    return cv < EVEN


class IterationStats:
    """Statistics over a training of any length, in constant memory.

    Args:
        timeline: Timeline of the training.
        facts: Names of the counts of the timeline, which are running totals. Defaults to ().
        categories: Category by phase, for phases that are hooks; looked up when a stall is found.
            Defaults to None.
        factor: Number of usual deviations by which a stall exceeds the usual time.
            Defaults to 8.0.
        keep: Number of longest stalls that are kept. Defaults to 50.
        machine: Function that returns the evidence of the machine between two times of
            `time.perf_counter`. Defaults to None.
        kinds_by: Phase that separates two kinds of iterations: those with this phase are compared
            with each other, and so are those without. Defaults to None: all are of one kind.
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
        self._records = StallRecords(timeline, facts, categories, machine)
        self._detector = StallDetector(factor, on_change=self._record_change)
        self._most = keep
        self._longest: list[dict[str, Any]] = []
        self._lost = StallTotals()
        self._taken = 0
        self._changes: deque[dict[str, Any]] = deque(maxlen=MOST_CHANGES)
        self._pending_changes: list[dict[str, Any]] = []
        self._whole, self._spread, self._pace = LogHistogram(), _Spread(), Pace()
        self._phases: dict[str, LogHistogram] = {}

    @property
    def suspect(self) -> float:
        """Return the seconds from which on an iteration may be judged slow; 0 while unknown."""
        return self._detector.suspect

    @property
    def lost_share(self) -> float:
        """Return the share of all time so far that was lost to slow iterations."""
        seconds = sum(phase.total for phase in self._phases.values())
        lost = self._lost.seconds + sum(one.lost for one in self._detector.open_spans())
        return lost / seconds if seconds else 0.0

    def take(self, is_last: bool = False) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """Return figures of the iterations that ended since the last call, and the stalls found.

        Args:
            is_last: Whether no more iterations follow, so that all are judged now.
                Defaults to False.
        """
        block = self._timeline.last(self._timeline.ended - self._taken)
        self._taken = self._timeline.ended
        found = self._detector.look(block.seconds, self._kinds(block))
        if is_last:
            found += self._detector.flush()
        stalls = self._stalls(found)
        # Without slow spans, which are older than this window.
        lost = sum(stall['lost'] for stall in stalls)
        stalls += self._keep(self._of_spans(self._detector.take_spans()))
        if not len(block):
            return None, stalls
        self._count(block)
        return self._figures_of(block, lost), stalls

    def take_changes(self) -> list[dict[str, Any]]:
        """Return the records of changes of the level that `take` found since the last call."""
        changes, self._pending_changes = self._pending_changes, []
        return changes

    def summary(self, intervals: Mapping[str, int | None]) -> dict[str, Any]:
        """Return the statistics over all iterations taken.

        Args:
            intervals: Known intervals by name, in iterations, to find periods in the stalls.
        """
        seconds = sum(phase.total for phase in self._phases.values())
        spans = self._of_spans(self._detector.open_spans())
        whole = self._lost.including(spans) if spans else self._lost
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
            phases={name: _phase_figures(one, seconds) for name, one in self._phases.items()},
            lost=dict(
                seconds=lost,
                share=lost / seconds if seconds else 0.0,
                count=whole.count,
                by_cause=whole.by_cause,
            ),
            stalls=_longest([*spans, *self._longest]),
            periods=self._lost.periods(intervals),
            changes=list(self._changes),
            pace=dict(values=list(self._pace.values), size=self._pace.size),
        )

    def ring(self, most: int | None = None) -> dict[str, Any]:
        """Return the seconds of the last iterations by phase.

        Args:
            most: Maximum number of iterations. Defaults to None: all that the timeline keeps.
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
        self._pace.add((whole - block.spent[:, FIRST]).tolist())  # waits have their own figures
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
            steady=_rate(count, self._steady_seconds(block)),
            p50=p50,
            p95=p95,
            p99=p99,
            cv=spread.cv,
            lost=lost,
            phases=dict(zip(self._timeline.names, block.spent.sum(axis=0).tolist())),
        )

    def _steady_seconds(self, block: Block) -> float:
        """Return the total seconds, with slow iterations counted as usual ones of their kind."""
        # A short window, such as the last iteration with an evaluation, has no usual time.
        longer = block if len(block) >= ENOUGH else self._timeline.last(ENOUGH)
        seconds, kinds = longer.seconds, self._kinds(longer)
        for kind in np.unique(kinds):
            usual = float(np.median(seconds[kinds == kind]))
            seconds[(kinds == kind) & (seconds > SLOW * usual)] = usual
        return float(seconds[-len(block) :].sum())

    def _stalls(self, found: list[Stall]) -> list[dict[str, Any]]:
        """Return the records of the slow iterations."""
        if not found:
            return []
        history = self._history()
        records = [self._records.of_one(history, one.iteration, one.usual) for one in found]
        return self._keep([record for record in records if record is not None])

    def _keep(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for record in records:
            self._lost.add(record)
        self._longest = _longest([*self._longest, *records])[: self._most]
        return records

    def _history(self) -> History:
        block = self._timeline.last(self._timeline.ended)
        return History(block, self._kinds(block), self._timeline.ended - len(block))

    def _record_change(self, change: LevelChange) -> bool:
        """Record a change of the level; return whether a slower level is a loss.

        After a new input shape it is none: the iterations do more work.
        """
        record = self._records.of_change(self._history(), change)
        self._changes.append(record)
        self._pending_changes.append(record)
        return all(part['cause'] != NEW_SHAPE for part in record.get('parts', ()))

    def _of_spans(self, spans: Iterable[SlowSpan]) -> list[dict[str, Any]]:
        found = (one for one in spans if one.iterations > 1 and one.lost > 0)
        return [self._records.of_span(one, self._changes) for one in found]

    def _kinds(self, block: Block) -> np.ndarray:
        """Return the kind of each iteration: whether it has the phase `kinds_by`."""
        if self._kinds_by not in self._timeline.names:
            return np.zeros(len(block), bool)
        return block.spent[:, self._timeline.names.index(self._kinds_by)] > 0


def _longest(stalls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(stalls, key=lambda stall: -stall['lost'])


class _Spread:
    """Mean and deviation of a stream, updated by Welford's method block by block."""

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
        """Return the coefficient of variation; None for fewer than two values."""
        if self._count < 2 or not self._mean:
            return None
        return math.sqrt(self._squares / self._count) / self._mean


def _phase_figures(phase: LogHistogram, seconds: float) -> dict[str, Any]:
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
