"""Format a summary as a table for a terminal, or as plain text for a log."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
)

MOST = 5  # stalls and causes that are listed
MOST_STAGES = 20  # stages of the forward pass that are listed
MIN_SHARE = 0.005  # of the time: smaller phases are summed in one row
BAR = 16  # characters for 100 %
# Replacements of characters that a log file or its reader may not support.
PLAIN = str.maketrans({'█': '#', '─': '-', '…': '~', '·': '-', MISSING: '-', '\u202f': ' '})
COLORS = {'completed': 'green', 'crashed': 'red', 'interrupted': 'yellow'}


def table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the table that is shown at the end of a run.

    ::

        verdict, why, what to change
        throughput
        phases      shares
        stages      of the forward pass
        processes   the slowest
        stalls      by cause, the longest, periods

    Args:
        summary: The content of a `tempo_summary.json`; missing figures have no row.
    """
    parts = [
        _title(summary),
        _verdict(summary.get('verdict') or {}),
        _throughput(summary),
        _phases(summary),
        _stages(summary.get('stages') or {}),
        _ranks(summary),
        _causes(summary),
        _stalls(summary),
        _periods(summary),
    ]
    return Group(*(part for part in parts if part is not None))


def to_text(summary: Mapping[str, Any], width: int = 100) -> str:
    """Return the same table for a log file: no colors, and only ASCII besides names.

    Args:
        summary: The content of a `tempo_summary.json`.
        width: Maximum length of a line in characters. Defaults to 100.
    """
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(table(summary))
    lines = file.getvalue().translate(PLAIN).replace('µs', 'us').splitlines()
    return '\n'.join(line.rstrip() for line in lines).strip('\n')


def _title(summary: Mapping[str, Any]) -> Text:
    title = Text('Throughput', style='bold')
    facts = []
    if number(summary.get('iterations')) is not None:
        facts.append(counted(summary['iterations'], 'iteration'))
    if number(summary.get('seconds')) is not None:
        facts.append(f'in {duration(summary["seconds"])}')
    status = str(summary.get('status') or '')
    title.append(f'  {" ".join(facts)}', style='dim')
    title.append(f'  {status}', style=COLORS.get(status, ''))
    if summary.get('error'):
        title.append(f': {summary["error"]}', style='red')
    return title


def _verdict(verdict: Mapping[str, Any]) -> RenderableType | None:
    if not verdict.get('headline'):
        return None
    lines = Table.grid(padding=(0, 1))
    lines.add_row('', Text(str(verdict['headline']), style='bold cyan'))
    for reason in verdict.get('why') or []:
        lines.add_row('-', Text(str(reason)))
    parts: list[RenderableType] = [lines]
    changes = [change for change in verdict.get('change') or [] if change.get('override')]
    if changes:
        parts.append(Text('  --cfg-options', style='green'))
    for change in changes:
        # Not in columns, so that an override can be copied as a whole.
        line = Text(str(change['override']), style='green', overflow='fold')
        parts += [
            Padding(line, (0, 0, 0, 4)),
            Padding(Text(str(change.get('why') or ''), style='dim'), (0, 0, 0, 8)),
        ]
    return _section('', Group(*parts))


def _throughput(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = [
        ('iterations', _pair(summary, 'steady', 'it_per_s', 'it/s')),
        ('samples', _pair(summary, 'samples_per_s_steady', 'samples_per_s', 'samples/s')),
        ('iteration time', _quantiles(summary)),
        ('variation', _evenness(summary)),
        ('lost to stalls', _lost(summary)),
        ('device busy', _busy(summary)),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style='dim', no_wrap=True)
    for name, text in rows:
        if text:
            grid.add_row(name, text)
    return _section('Speed', grid) if grid.row_count else None


def _pair(summary: Mapping[str, Any], steady: str, whole: str, unit: str) -> str:
    return ', '.join(
        f'{digits(summary[key], unit)} {name}'
        for key, name in ((steady, 'steady'), (whole, 'end to end'))
        if number(summary.get(key)) is not None
    )


def _quantiles(summary: Mapping[str, Any]) -> str:
    return ', '.join(
        f'{key} {duration(summary[key])}'
        for key in ('p50', 'p95', 'p99')
        if number(summary.get(key)) is not None
    )


def _evenness(summary: Mapping[str, Any]) -> Text | None:
    cv = number(summary.get('cv'))
    if cv is None:
        return None
    word, style = ('even', '') if is_even(cv) else ('uneven', 'yellow')
    text = f'{percent(cv)}: {word} (coefficient of variation, target below {percent(EVEN)})'
    return Text(text, style=style)


def _lost(summary: Mapping[str, Any]) -> str:
    lost = summary.get('lost') or {}
    if number(lost.get('seconds')) is None:
        return ''
    if not lost.get('count', 1):
        return 'nothing'
    share = f', {percent(lost["share"])} of the time' if number(lost.get('share')) else ''
    return f'{duration(lost["seconds"])}{share}, in {iterations(lost.get("count"))}'


def _busy(summary: Mapping[str, Any]) -> str:
    busy = summary.get('device_busy') or {}
    if number(busy.get('mean')) is None:
        return ''
    readings = counted(busy.get('looks', 0), 'reading')
    return f'{percent(busy["mean"])} of the time ({readings} of its driver)'


def _phases(summary: Mapping[str, Any]) -> RenderableType | None:
    """Return the phases by share; those below `MIN_SHARE` are one row."""
    phases = [
        (name, number(entry.get('seconds')), number(entry.get('share')) or 0.0, entry)
        for name, entry in (summary.get('phases') or {}).items()
    ]
    phases = [row for row in phases if row[1]]
    if not phases:
        return None
    phases.sort(key=lambda row: -row[2])
    count = number(summary.get('iterations'))
    rows = _columns('phase', '>share', '', '>total', '>per iteration', '>p50', '>p95')
    shown = [row for row in phases if row[2] >= MIN_SHARE]
    for name, seconds, share, entry in shown:
        bar = Text('█' * max(1, round(BAR * share)), style='cyan')
        mean = duration(seconds / count) if seconds and count else MISSING
        quantiles = (duration(entry.get('p50')), duration(entry.get('p95')))
        name = name.removeprefix('hook:')
        rows.add_row(Text(name), percent(share), bar, duration(seconds), mean, *quantiles)
    rest = phases[len(shown) :]
    if rest:
        share, seconds = sum(row[2] for row in rest), sum(row[1] or 0.0 for row in rest)
        name = Text(f'{len(rest)} more', style='dim')
        rows.add_row(name, percent(share), '', duration(seconds), '', '', '')
    return _section('Time by phase', rows)


def _stages(profile: Mapping[str, Any]) -> RenderableType | None:
    """Return the largest stages of the forward pass in their order, and the rest."""
    listed = list(profile.get('stages') or [])
    if not listed:
        return None
    *stages, rest = listed
    by_share = sorted(stages, key=lambda stage: -(number(stage.get('share')) or 0.0))
    cut = by_share[MOST_STAGES:]
    is_on_device = any(number(stage.get('device_seconds')) is not None for stage in listed)
    clocks = {'seconds': 'per iteration'}
    if is_on_device:
        clocks = {'device_seconds': 'device time', 'seconds': 'host time'}
    rows = _columns('stage', '>share', '', *(f'>{name}' for name in clocks.values()))
    for stage in [*(stage for stage in stages if stage not in cut), rest]:
        share = number(stage.get('share'))
        bar = Text('█' * round(BAR * min(1.0, share or 0.0)), style='cyan')
        times = (duration(stage.get(key)) for key in clocks)
        rows.add_row(Text(str(stage.get('name', MISSING))), percent(share), bar, *times)
    lines = [f'{counted(len(cut), "smaller stage")} not listed.'] if cut else []
    remarks = [Text(line, style='dim') for line in [*lines, *profile_notes(profile)]]
    return _section(profile_title(profile), Group(rows, *remarks))


def _ranks(summary: Mapping[str, Any]) -> RenderableType | None:
    """Return the time of the slowest rank, and which rank it was."""
    rows = _columns('per iteration', '>mean', '>last window', 'usually')
    for name, entry in (summary.get('ranks') or {}).items():
        last = f'{duration(entry.get("max"))}, rank {entry.get("rank", MISSING)}'
        usual = ''
        if number(entry.get('of')):
            usual = f'rank {entry.get("usual")}, in {entry.get("often")} of {entry["of"]} windows'
        rows.add_row(Text(str(name)), duration(entry.get('mean')), last, Text(usual))
    return _section('Slowest rank', rows) if rows.row_count else None


def _causes(summary: Mapping[str, Any]) -> RenderableType | None:
    by_cause = (summary.get('lost') or {}).get('by_cause') or {}
    total = number(summary.get('seconds'))
    causes = sorted(by_cause.items(), key=lambda row: -(number(row[1].get('seconds')) or 0.0))
    rows = _columns('cause', 'category', '>stalls', '>lost', '>share')
    for cause, entry in causes[:MOST]:
        seconds = number(entry.get('seconds'))
        share = percent(seconds / total) if seconds is not None and total else MISSING
        category = Text(str(entry.get('category', '')), style='dim')
        count = str(entry.get('count', MISSING))
        rows.add_row(Text(cause), category, count, duration(seconds), share)
    if len(causes) > MOST:
        more = causes[MOST:]
        seconds = sum(number(entry.get('seconds')) or 0.0 for _, entry in more)
        count = str(sum(int(number(entry.get('count')) or 0) for _, entry in more))
        name = Text(f'{len(more)} more', style='dim')
        share = percent(seconds / total) if total else MISSING
        rows.add_row(name, '', count, duration(seconds), share)
    return _section('Time lost by cause', rows) if causes else None


def _stalls(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = _columns('>iteration', '>lost', 'cause')
    for stall in (summary.get('stalls') or [])[:MOST]:
        text = stall.get('text') or stall.get('cause') or MISSING
        rows.add_row(str(stall.get('iter', MISSING)), duration(stall.get('lost')), Text(str(text)))
    return _section('Longest stalls', rows) if rows.row_count else None


def _periods(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = Table.grid(padding=(0, 2))
    for period in summary.get('periods') or []:
        what = f' = {period["what"]}' if period.get('what') else ''
        text = period.get('text') or f'every {period.get("every", MISSING)} iterations{what}'
        cause = str(period.get('cause', ''))
        rows.add_row(Text(cause, style='dim'), Text(str(text).removeprefix(f'{cause}: ')))
    return _section('Periodic stalls', rows) if rows.row_count else None


def _columns(*names: str) -> Table:
    """Return an empty table; a name that starts with '>' aligns its column to the right."""
    columns = Table(box=None, padding=(0, 2, 0, 0), header_style='dim')
    for name in names:
        is_right = name.startswith('>')
        columns.add_column(
            name.removeprefix('>'),
            justify='right' if is_right else 'left',
            no_wrap=is_right,
            overflow='fold',
        )
    return columns


def _section(title: str, content: RenderableType) -> RenderableType:
    parts: Iterable[RenderableType] = [Text(title, style='bold')] if title else []
    return Padding(Group(*parts, Padding(content, (0, 0, 0, 2))), (1, 0, 0, 0))
