"""What there is to say of iterations that were slow: one alone, or many one after the other."""

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
from .level_shift import SlowSpan
from .stall_detector import GROUP, LevelChange
from .timeline import NANO, Block, Timeline

# Iterations that a usual one is taken from.
RECENT = 129
AS_USUAL = 0.2  # of the usual time more or less
UNKNOWN, PACE = 'unexplained', 'pace'
# Seconds among what a machine has to say of some time.
SECONDS = {'psi_cpu', 'psi_memory', 'psi_io', 'throttled'}


@dataclass(frozen=True)
class History:
    """What a timeline keeps of the last iterations.

    Attributes:
        block: They.
        kinds: Of each.
        first: The place of the first one in the stream.
    """

    block: Block
    kinds: np.ndarray
    first: int

    @cached_property
    def facts(self) -> _Facts:
        return _Facts(self.block.facts)

    def alike(self, row: int) -> tuple[np.ndarray, int]:
        """Rows of its kind, and where it is among them."""
        rows = np.flatnonzero(self.kinds == self.kinds[row])
        return rows, int(np.searchsorted(rows, row))


class StallRecords:
    """Makes entries: dicts for a file, with what people are told as `text`.

    Args:
        timeline: Of the training.
        facts: Names of what it counts.
        categories: Of phases that are hooks; looked up when an entry is made.
        machine: What the machine has to say of the time between two moments of
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

    def of_one(self, kept: History, place: int, usual: float) -> dict[str, Any] | None:
        """Of an iteration; None where nothing is kept of it.

        Args:
            kept: What is known.
            place: Its own, in the stream.
            usual: Seconds that such iterations take.
        """
        block, row = kept.block, place - kept.first
        if row < 0:
            return None
        alike, at = kept.alike(row)
        near = alike[max(0, at - RECENT) :][: RECENT + 17]
        seconds, start = float(block.seconds[row]), self._clock(block.starts[row])
        counted, usually_counted = kept.facts.of(row, near)
        slow = SlowIteration(
            number=int(block.numbers[row]),
            seconds=seconds,
            usual=usual,
            spent=_named(self._timeline.names, block.spent[row]),
            usually=_named(self._timeline.names, np.median(block.spent[near], axis=0)),
            facts=_named(self._facts, counted),
            usual_facts=_named(self._facts, usually_counted),
            machine=self._seen(start, start + seconds),
            note=block.notes[row] or {},
        )
        found = diagnose(slow, self._categories)
        return dict(
            iter=slow.number,
            time=time.time() - (time.perf_counter() - start),
            seconds=seconds,
            usual=usual,
            lost=slow.lost,
            **_blamed(found),
            text=f'took {duration(seconds)} instead of {duration(usual)}: {found.why}',
        )

    def of_change(self, kept: History, change: LevelChange) -> dict[str, Any]:
        """From an iteration on the pace is another one; where it is slower, why."""
        entry: dict[str, Any] = dict(
            iter=self._timeline.before + change.iteration + 1,
            old=change.old,
            new=change.new,
            text=f'takes {duration(change.new)} instead of {duration(change.old)} from here on',
        )
        found = self._why(kept, change) if change.new > change.old else None
        if found is not None:
            entry.update(_blamed(found), text=f'{entry["text"]}: {found.why}')
        return entry

    def of_spell(self, spell: SlowSpan, changes: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Of many iterations, as of one.

        Args:
            spell: They.
            changes: Entries, that of its beginning among them.
        """
        first, last = (self._timeline.before + one + 1 for one in (spell.first, spell.last))
        change = next((one for one in changes if one['iter'] == first), {})
        took = spell.usual + spell.lost / spell.iterations
        parts = change.get('parts') or [dict(category=PACE, cause='slower pace', seconds=1.0)]
        whole = sum(part['seconds'] for part in parts)
        parts = [
            dict(_slower(part), seconds=part['seconds'] / whole * spell.lost) for part in parts
        ]
        until = '' if spell.is_over else ', up to the last one,'
        why = ', and '.join(part['cause'] for part in parts)
        return dict(
            iter=first,
            until=last,
            iterations=spell.iterations,
            seconds=took,
            usual=spell.usual,
            lost=spell.lost,
            phase=change.get('phase', UNKNOWN),
            cause=parts[0]['cause'],
            category=parts[0]['category'],
            parts=parts,
            evidence=change.get('evidence', {}),
            text=f'and {spell.iterations - 1} more{until} took {duration(took)} each instead of '
            f'{duration(spell.usual)}: {why}',
        )

    def _why(self, kept: History, change: LevelChange) -> Diagnosis | None:
        """What usual iterations have more of than those before; None where that is not known."""
        block, row = kept.block, change.iteration - kept.first
        if row < 0:
            return None
        alike, at = kept.alike(row)
        before, since = alike[max(0, at - RECENT) : at], alike[at : at + GROUP]
        # Of the level that has changed, not of others before.
        apart = np.abs(block.seconds[before] - change.old)
        earlier = before[apart <= AS_USUAL * change.old]
        if not len(earlier):
            return None
        names, facts = self._timeline.names, kept.facts
        # The first one of a new shape takes longer, so that the pace may change behind it only.
        notes = [block.notes[one] or {} for one in [*before[-GROUP:], row]]
        note = next((one for one in notes if one.get('is_new_shape')), notes[-1])
        end = block.starts[since[-1]] + block.seconds[since[-1]]
        machine = self._seen(self._clock(block.starts[row]), self._clock(end))
        slow = SlowIteration(
            number=int(block.numbers[row]),
            seconds=change.new,
            usual=change.old,
            spent=_named(names, np.median(block.spent[since], axis=0)),
            usually=_named(names, np.median(block.spent[earlier], axis=0)),
            facts=_named(self._facts, facts.usual(since)),
            usual_facts=_named(self._facts, facts.usual(earlier)),
            # Of a single one, as all else here.
            machine={
                key: value / len(since) if key in SECONDS else value
                for key, value in machine.items()
            },
            note={key: note[key] for key in ('shape', 'is_new_shape') if key in note},
        )
        return diagnose(slow, self._categories) if slow.is_explained() else None

    def _clock(self, seconds: float) -> float:
        """A moment of the timeline, as of `time.perf_counter`."""
        return self._timeline.began * NANO + float(seconds)

    def _seen(self, start: float, end: float) -> dict[str, Any]:
        return {} if self._machine is None else self._machine(start, end)


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

    def usual(self, near: np.ndarray) -> np.ndarray:
        """What these iterations usually add; nan where that is not known."""
        known = near[self._among[near] > 0]
        if not len(known):
            return np.full(self._added.shape[1], np.nan)
        return np.median(self._added[known], axis=0)

    def of(self, row: int, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What an iteration that was slow has added, and what those near it usually do."""
        usual = self.usual(near)
        if np.isnan(usual).any():
            usual = self._added[row]
        return usual + self._among[row] * (self._added[row] - usual), usual


def _blamed(found: Diagnosis) -> dict[str, Any]:
    first = found.parts[0]
    return dict(
        phase=found.phase,
        cause=first.cause,
        category=first.category,
        parts=[vars(part) for part in found.parts],
        evidence=found.evidence,
    )


def _slower(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a slower spell; a phase alone explains it as little as a single stall."""
    if part['category'] != UNKNOWN:
        return part
    return dict(part, category=PACE, cause=f'slower {part["cause"]}')


def _named(names: Iterable[str], values: np.ndarray) -> dict[str, float]:
    """Without what is not known."""
    pairs = zip(names, values.tolist())
    return {name: value for name, value in pairs if not math.isnan(value)}
