"""Key figures and tables of a summary, which the terminal and the page render."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmtempo.timing.statistics import EVEN, is_even
from mmtempo.utils.units import counted

from .format import (
    MISSING,
    digits,
    duration,
    iterations,
    number,
    percent,
    profile_notes,
    profile_title,
    total,
)

STALLS = 200
# What a brief section, that of a terminal, has at most; it sums or omits the others.
BRIEF_STALLS, BRIEF_CAUSES, BRIEF_STAGES = 5, 5, 20
MIN_SHARE = 0.005  # of the time: smaller phases are one row of a brief section


@dataclass(frozen=True)
class Seconds:
    """A cell with a time, shown in the unit of its column."""

    value: Any


@dataclass(frozen=True)
class Share:
    """A cell with a fraction, shown as a bar and in percent."""

    value: Any


@dataclass(frozen=True)
class Sentence:
    """A cell with a text, and with figures as its evidence, for which only a page has room."""

    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A key figure: its name, its formatted value, and a note that may be empty."""

    name: str
    value: str
    note: str = ''


@dataclass(frozen=True)
class Section:
    """A table with a title.

    Args:
        title: Title of the section.
        head: Names of the columns. After '<' a column has text, else numbers; a column after '+'
            has details and is not part of a brief section.
        rows: Cells of each row; without rows, nothing is shown.
        notes: Sentences after the table. Defaults to ().
    """

    title: str
    head: tuple[str, ...]
    rows: list[list[Any]]
    notes: tuple[str, ...] = ()

    def columns(self, brief: bool = False) -> Iterator[tuple[str, bool, list[Any]]]:
        """Yield name, whether it has text, and cells of each column that has a value."""
        for index, name in enumerate(self.head):
            cells = _in_one_unit([row[index] for row in self.rows])
            has_value = index == 0 or any(cell not in (MISSING, '') for cell in cells)
            if has_value and not (brief and name.startswith('+')):
                yield name.lstrip('+<'), '<' in name, cells


def figures(summary: Mapping[str, Any], whole: str = 'end to end') -> list[Figure]:
    """Return the key figures that were measured.

    Args:
        summary: The summary of the run.
        whole: Name of the speed that includes all of the time. Defaults to 'end to end'.
    """
    found = []
    for name, key, samples in (
        ('steady', 'steady', 'samples_per_s_steady'),
        (whole, 'it_per_s', 'samples_per_s'),
    ):
        note = digits(summary.get(samples), 'samples/s')
        found.append((name, digits(summary.get(key), 'it/s'), note))
    lost, busy = summary.get('lost') or {}, summary.get('device_busy') or {}
    seconds = f'{duration(lost.get("seconds"))} in {iterations(lost.get("count"))}'
    if lost.get('count', 1):
        found.append(('lost to stalls', percent(lost.get('share')), seconds))
    else:
        found.append(('lost to stalls', 'nothing', ''))
    variation = number(summary.get('cv'))
    word = 'even' if variation is not None and is_even(variation) else 'uneven'
    found.append(('variation', percent(variation), f'{word} (target < {percent(EVEN)})'))
    quantiles = (f'{key} {duration(summary[key])}' for key in ('p95', 'p99') if summary.get(key))
    found.append(('iteration, p50', duration(summary.get('p50')), ', '.join(quantiles)))
    readings = counted(busy.get('looks', 0), 'reading')
    found.append(('device busy', percent(busy.get('mean')), f'mean of {readings}'))
    return [
        Figure(name, value, '' if note == MISSING else note)
        for name, value, note in found
        if value != MISSING
    ]


def phases(summary: Mapping[str, Any], brief: bool = False) -> Section:
    """Return the time by phase; brief, those below `MIN_SHARE` are one row."""
    device = summary.get('device') or {}
    count = number(summary.get('iterations'))
    rows: list[list[Any]] = []
    small = []
    for name, entry in _descending(summary.get('phases') or {}, 'share'):
        seconds = number(entry.get('seconds'))
        if not seconds:
            continue
        if brief and (number(entry.get('share')) or 0) < MIN_SHARE:
            small.append(entry)
            continue
        on_device = device.get(name) or {}
        device_time = number(on_device.get('seconds')), number(on_device.get('count'))
        rows.append(
            [
                name.removeprefix('hook:') if brief else name,
                Share(entry.get('share')),
                Seconds(seconds),
                _ratio(Seconds, seconds, count),
                *(Seconds(entry.get(key)) for key in ('p50', 'p95', 'p99')),
                _ratio(Seconds, *device_time),
            ]
        )
    if small:
        sums = Share(total(small, 'share')), Seconds(total(small, 'seconds'))
        rows.append([f'{len(small)} more', *sums, '', '', '', '', ''])
    times = ('total', 'per iteration', 'p50', 'p95', '+p99', '+device time')
    return Section('Time by phase', ('<phase', 'share', *times), rows)


def stages(summary: Mapping[str, Any], brief: bool = False) -> Section:
    """Return the forward pass by module; brief, the largest ones in their order, and the rest."""
    profile = summary.get('stages') or {}
    listed = list(profile.get('stages') or [])
    notes = profile_notes(profile) if listed else []
    if brief:
        by_share = sorted(listed[:-1], key=lambda stage: -(number(stage.get('share')) or 0))
        cut = by_share[BRIEF_STAGES:]
        listed = [stage for stage in listed if stage not in cut]
        if cut:
            notes.insert(0, f'{counted(len(cut), "smaller stage")} not listed.')
    rows = [
        [
            stage.get('name', MISSING),
            stage.get('type', MISSING),
            Share(stage.get('share')),
            Seconds(stage.get('device_seconds')),
            Seconds(stage.get('seconds')),
            MISSING if calls is None else f'{round(calls, 2):g}',
        ]
        for stage, calls in ((stage, number(stage.get('calls'))) for stage in listed)
    ]
    head = ('<stage', '+<type', 'share', 'device time', 'host time', '+calls')
    return Section(profile_title(profile), head, rows, tuple(notes))


def ranks(summary: Mapping[str, Any]) -> Section:
    """Return the time of the slowest rank, and which rank it was."""
    rows = []
    for name, entry in (summary.get('ranks') or {}).items():
        last = f'{duration(entry.get("max"))}, rank {entry.get("rank", MISSING)}'
        usual = ''
        if number(entry.get('of')):
            usual = f'rank {entry.get("usual")}, in {entry.get("often")} of {entry["of"]} windows'
        rows.append([name, Seconds(entry.get('mean')), last, usual])
    return Section('Slowest rank', ('<per iteration', 'mean', 'last window', '<usually'), rows)


def causes(summary: Mapping[str, Any]) -> Section:
    """Return the time lost by cause; those after the first ones are one row."""
    by_cause = _descending((summary.get('lost') or {}).get('by_cause') or {}, 'seconds')
    whole = number(summary.get('seconds'))
    listed = [(name, e.get('category', ''), [e]) for name, e in by_cause[:BRIEF_CAUSES]]
    more = [entry for _, entry in by_cause[BRIEF_CAUSES:]]
    if more:
        listed.append((f'{len(more)} more', '', more))
    rows = []
    for name, category, entries in listed:
        seconds, count = total(entries, 'seconds'), total(entries, 'count')
        rows.append(
            [name, category, f'{count:.0f}', Seconds(seconds), _ratio(percent, seconds, whole)]
        )
    head = ('<cause', '<category', 'stalls', 'lost', 'share')
    return Section('Time lost by cause', head, rows)


def stalls(summary: Mapping[str, Any], brief: bool = False) -> Section:
    """Return the slow iterations that cost most."""
    found = sorted(summary.get('stalls') or [], key=lambda stall: -(number(stall.get('lost')) or 0))
    rows = []
    for stall in found[: BRIEF_STALLS if brief else STALLS]:
        cause, phase = stall.get('cause', MISSING), stall.get('phase') or ''
        rows.append(
            [
                stall.get('iter', MISSING),
                Seconds(stall.get('lost')),
                Seconds(stall.get('seconds')),
                cause,
                '' if phase.removeprefix('hook:') == cause else phase,
                Sentence(stall.get('text') or cause, stall.get('evidence') or {}),
            ]
        )
    head = ('iteration', 'lost', '+took', '+<cause', '+<phase', '<description')
    return Section('Longest stalls' if brief else 'Slow iterations', head, rows)


def periods(summary: Mapping[str, Any]) -> Section:
    """Return the causes that recur with a fixed period."""
    rows = []
    for period in summary.get('periods') or []:
        cause, every = period.get('cause', MISSING), period.get('every', MISSING)
        what = period.get('what') or MISSING
        text = period.get('text') or f'every {every} iterations = {what}'
        share = f'{period.get("count", MISSING)} of {period.get("of", MISSING)}'
        sentence = Sentence(str(text).removeprefix(f'{cause}: '))
        rows.append([cause, f'every {every}', what, share, sentence])
    head = ('<cause', '+<period', '+<equals', '+stalls', '<description')
    return Section('Periodic stalls', head, rows)


def _descending(entries: Mapping[str, Mapping[str, Any]], key: str) -> list[tuple[str, Any]]:
    return sorted(entries.items(), key=lambda item: -(number(item[1].get(key)) or 0))


def _in_one_unit(cells: list[Any]) -> list[Any]:
    """Replace the times of a column by texts."""
    largest = max((number(c.value) or 0.0 for c in cells if isinstance(c, Seconds)), default=0.0)
    return [duration(c.value, largest) if isinstance(c, Seconds) else c for c in cells]


def _ratio(show: Any, value: float | None, of: float | None) -> Any:
    return show(value / of) if value is not None and of else MISSING
