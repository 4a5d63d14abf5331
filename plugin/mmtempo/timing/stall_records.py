"""Records of slow iterations: single stalls, changes of the level, and slow spans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mmtempo.utils.units import duration

from .causes import Diagnosis, SlowIteration, diagnose
from .level_shift import LevelChange, SlowSpan
from .stall_detector import GROUP
from .timeline import NANO, Block, Timeline

RECENT = 129  # number of earlier iterations that define what is usual
AS_USUAL = 0.2  # relative distance from a level within which an iteration belongs to it
UNKNOWN, PACE = 'unexplained', 'pace'
# Evidence of the machine that is measured in seconds.
SECONDS = {'psi_cpu', 'psi_memory', 'psi_io', 'throttled'}


@dataclass(frozen=True)
class History:
    """Last iterations that a timeline keeps.

    Attributes:
        block: The iterations.
        kinds: Kind of each iteration.
        first: Index of the first iteration in the stream.
    """

    block: Block
    kinds: np.ndarray
    first: int

    @cached_property
    def counts(self) -> np.ndarray:
        """Return the counts of each iteration, from the totals; nan where they are unknown."""
        return np.diff(self.block.facts, axis=0, prepend=np.nan)

    def usual_counts(self, rows: np.ndarray) -> np.ndarray:
        """Return the median counts of the iterations in these rows; nan where they are unknown."""
        counts = self.counts[rows]
        known = counts[~np.isnan(counts).all(axis=1)]
        return np.median(known, axis=0) if len(known) else np.full(counts.shape[1], np.nan)

    def alike(self, row: int) -> tuple[np.ndarray, int]:
        """Return the rows of the same kind as a row, and the index of the row among them."""
        rows = np.flatnonzero(self.kinds == self.kinds[row])
        return rows, int(np.searchsorted(rows, row))


class StallRecords:
    """Builder of records: dicts for a file, with a sentence for the log as `text`.

    Args:
        timeline: Timeline of the training.
        facts: Names of its counts.
        categories: Category by phase, for phases that are hooks; looked up when a record is made.
        machine: Function that returns the evidence of the machine between two times of
            `time.perf_counter`. Defaults to None.
    """

    def __init__(
        self,
        timeline: Timeline,
        facts: tuple[str, ...],
        categories: dict[str, str],
        machine: Callable[[float, float], dict] | None = None,
    ) -> None:
        self._timeline, self._facts = timeline, facts
        self._categories, self._machine = categories, machine

    def of_one(self, history: History, index: int, usual: float) -> dict[str, Any] | None:
        """Return the record of a slow iteration; None if the history does not contain it.

        Args:
            history: Last iterations of the timeline.
            index: Index of the iteration in the stream.
            usual: Usual seconds of such iterations.
        """
        block, row = history.block, index - history.first
        if row < 0:
            return None
        alike, at = history.alike(row)
        near = alike[max(0, at - RECENT) :][: RECENT + 17]
        seconds, start = float(block.seconds[row]), self._clock(block.starts[row])
        slow = SlowIteration(
            number=int(block.numbers[row]),
            seconds=seconds,
            usual=usual,
            spent=_named(self._timeline.names, block.spent[row]),
            usual_spent=_named(self._timeline.names, np.median(block.spent[near], axis=0)),
            facts=_named(self._facts, history.counts[row]),
            usual_facts=_named(self._facts, history.usual_counts(near)),
            machine=self._evidence(start, start + seconds),
            note=block.notes[row] or {},
        )
        diagnosis = diagnose(slow, self._categories)
        return dict(
            iter=slow.number,
            time=time.time() - (time.perf_counter() - start),
            seconds=seconds,
            usual=usual,
            lost=slow.lost,
            **_fields(diagnosis),
            text=f'took {duration(seconds)} instead of {duration(usual)}: {diagnosis.why}',
        )

    def of_change(self, history: History, change: LevelChange) -> dict[str, Any]:
        """Return the record of a change of the level, with the cause where it is slower."""
        record: dict[str, Any] = dict(
            iter=self._timeline.before + change.iteration + 1,
            old=change.old,
            new=change.new,
            text=f'takes {duration(change.new)} instead of {duration(change.old)} from here on',
        )
        diagnosis = self._why(history, change) if change.new > change.old else None
        if diagnosis is not None:
            record.update(_fields(diagnosis), text=f'{record["text"]}: {diagnosis.why}')
        return record

    def of_span(self, span: SlowSpan, changes: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Return the record of a slow span.

        Args:
            span: The slow span.
            changes: Records of changes, among them the one with which the span began.
        """
        first, last = (self._timeline.before + one + 1 for one in (span.first, span.last))
        change = next((one for one in changes if one['iter'] == first), {})
        took = span.usual + span.lost / span.iterations
        parts = change.get('parts') or [dict(category=PACE, cause='slower pace', seconds=1.0)]
        whole = sum(part['seconds'] for part in parts)
        parts = [dict(_slower(part), seconds=part['seconds'] / whole * span.lost) for part in parts]
        until = '' if span.is_over else ', up to the last iteration,'
        why = ', and '.join(part['cause'] for part in parts)
        return dict(
            iter=first,
            until=last,
            iterations=span.iterations,
            seconds=took,
            usual=span.usual,
            lost=span.lost,
            phase=change.get('phase', UNKNOWN),
            cause=parts[0]['cause'],
            category=parts[0]['category'],
            parts=parts,
            evidence=change.get('evidence', {}),
            text=f'and {span.iterations - 1} more{until} took {duration(took)} each instead of '
            f'{duration(span.usual)}: {why}',
        )

    def _why(self, history: History, change: LevelChange) -> Diagnosis | None:
        """Diagnose a slower level by its typical iteration; None where that is unknown."""
        block, row = history.block, change.iteration - history.first
        if row < 0:
            return None
        alike, at = history.alike(row)
        before, since = alike[max(0, at - RECENT) : at], alike[at : at + GROUP]
        # Compare with the last level only, not with levels before it.
        apart = np.abs(block.seconds[before] - change.old)
        earlier = before[apart <= AS_USUAL * change.old]
        if not len(earlier):
            return None
        names = self._timeline.names
        # The first iteration of a new shape takes longer, so the level may change only after it.
        notes = [block.notes[one] or {} for one in [*before[-GROUP:], row]]
        note = next((one for one in notes if one.get('is_new_shape')), notes[-1])
        end = block.starts[since[-1]] + block.seconds[since[-1]]
        machine = self._evidence(self._clock(block.starts[row]), self._clock(end))
        slow = SlowIteration(
            number=int(block.numbers[row]),
            seconds=change.new,
            usual=change.old,
            spent=_named(names, np.median(block.spent[since], axis=0)),
            usual_spent=_named(names, np.median(block.spent[earlier], axis=0)),
            facts=_named(self._facts, history.usual_counts(since)),
            usual_facts=_named(self._facts, history.usual_counts(earlier)),
            # Seconds of one iteration, as all other values here.
            machine={
                key: value / len(since) if key in SECONDS else value
                for key, value in machine.items()
            },
            note={key: note[key] for key in ('shape', 'is_new_shape') if key in note},
        )
        return diagnose(slow, self._categories) if slow.is_explained() else None

    def _clock(self, seconds: float) -> float:
        """Convert a time of the timeline to one of `time.perf_counter`."""
        return self._timeline.began * NANO + float(seconds)

    def _evidence(self, start: float, end: float) -> dict[str, Any]:
        """Return the evidence of the machine; empty where it is not sampled."""
        return {} if self._machine is None else self._machine(start, end)


def _fields(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the fields of a record that describe a diagnosis."""
    first = diagnosis.parts[0]
    return dict(
        phase=diagnosis.phase,
        cause=first.cause,
        category=first.category,
        parts=[vars(part) for part in diagnosis.parts],
        evidence=diagnosis.evidence,
    )


def _slower(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a slow span; a phase alone is no cause, as for a single stall."""
    if part['category'] != UNKNOWN:
        return part
    return dict(part, category=PACE, cause=f'slower {part["cause"]}')


def _named(names: Iterable[str], values: np.ndarray) -> dict[str, float]:
    """Return values by name, without unknown ones."""
    pairs = zip(names, values.tolist())
    return {name: value for name, value in pairs if not math.isnan(value)}
