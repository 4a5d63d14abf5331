"""What a run was like, for a terminal and for the log."""

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

from . import stages
from .format import MISSING, digits, duration, number, percent

MOST = 5  # stalls and causes that are listed
MOST_STAGES = 20  # parts of the forward pass, which the config has asked for
LEAST = 0.005  # share of a phase that gets a line of its own
BAR = 16  # characters for the whole time
# What not every log file, or reader of one, can have.
PLAIN = str.maketrans({'█': '#', '─': '-', '…': '~', '·': '-', MISSING: '-', '\u202f': ' '})
COLORS = {'completed': 'green', 'crashed': 'red', 'interrupted': 'yellow'}


def table(summary: Mapping[str, Any]) -> RenderableType:
    """All that is worth to be seen at the end of a run.

    ::

        verdict, why, what to change
        throughput
        phases      shares
        stages      of the forward pass
        processes   the slowest
        stalls      by cause, the longest, periods

    Args:
        summary: The content of a `tempo_summary.json`; what is missing has no line.
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
    """The same for a log file: no colours, and no characters that are not ASCII of its own.

    Args:
        summary: The content of a `tempo_summary.json`.
        width: Characters in a line at most. Defaults to 100.
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


def _verdict(found: Mapping[str, Any]) -> RenderableType | None:
    if not found.get('headline'):
        return None
    lines = Table.grid(padding=(0, 1))
    lines.add_row('', Text(str(found['headline']), style='bold cyan'))
    for reason in found.get('why') or []:
        lines.add_row('-', Text(str(reason)))
    parts: list[RenderableType] = [lines]
    changes = [one for one in found.get('change') or [] if one.get('override')]
    if changes:
        parts.append(Text('  --cfg-options', style='green'))
    for change in changes:
        # Not in columns: it is there to be copied.
        line = Text(str(change['override']), style='green', overflow='fold')
        parts += [
            Padding(line, (0, 0, 0, 4)),
            Padding(Text(str(change.get('why') or ''), style='dim'), (0, 0, 0, 8)),
        ]
    return _below('', Group(*parts))


def _throughput(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = [
        ('iterations', _pair(summary, 'steady', 'it_per_s', 'it/s')),
        ('samples', _pair(summary, 'samples_per_s_steady', 'samples_per_s', 'samples/s')),
        ('each takes', _quantiles(summary)),
        ('varies by', _evenness(summary)),
        ('lost to stalls', _lost(summary)),
        ('device busy', _busy(summary)),
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style='dim', no_wrap=True)
    for name, text in rows:
        if text:
            grid.add_row(name, text)
    return _below('Speed', grid) if grid.row_count else None


def _pair(summary: Mapping[str, Any], steady: str, whole: str, unit: str) -> str:
    found = ((steady, 'steady'), (whole, 'end to end'))
    return ', '.join(
        f'{digits(summary[key], unit)} {name}'
        for key, name in found
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
    count = number(lost.get('count'))
    times = f'{MISSING} iterations' if count is None else counted(round(count), 'iteration')
    return f'{duration(lost["seconds"])}{share}, in {times}'


def _busy(summary: Mapping[str, Any]) -> str:
    found = summary.get('device_busy') or {}
    if number(found.get('mean')) is None:
        return ''
    looks = counted(found.get('looks', 0), 'look')
    return f'{percent(found["mean"])} of the time, by its driver at {looks}'


def _phases(summary: Mapping[str, Any]) -> RenderableType | None:
    """Where the time went; what is too short for a line is told together."""
    found = [
        (name, number(one.get('seconds')), number(one.get('share')) or 0.0, one)
        for name, one in (summary.get('phases') or {}).items()
    ]
    found = [row for row in found if row[1]]
    if not found:
        return None
    found.sort(key=lambda row: -row[2])
    iterations = number(summary.get('iterations'))
    rows = _columns('phase', '>share', '', '>total', '>an iteration', '>p50', '>p95')
    shown = [row for row in found if row[2] >= LEAST]
    for name, seconds, share, one in shown:
        bar = Text('█' * max(1, round(BAR * share)), style='cyan')
        each = duration(seconds / iterations) if seconds and iterations else MISSING
        quantiles = (duration(one.get('p50')), duration(one.get('p95')))
        name = name.removeprefix('hook:')
        rows.add_row(Text(name), percent(share), bar, duration(seconds), each, *quantiles)
    rest = found[len(shown) :]
    if rest:
        share, seconds = sum(row[2] for row in rest), sum(row[1] or 0.0 for row in rest)
        name = Text(f'{len(rest)} more', style='dim')
        rows.add_row(name, percent(share), '', duration(seconds), '', '', '')
    return _below('Where the time went', rows)


def _stages(found: Mapping[str, Any]) -> RenderableType | None:
    """Parts of the forward pass in their order, and what they leave; the smallest are cut."""
    listed = list(found.get('stages') or [])
    if not listed:
        return None
    *parts, rest = listed
    by_share = sorted(parts, key=lambda one: -(number(one.get('share')) or 0.0))
    cut = by_share[MOST_STAGES:]
    is_on_device = any(number(one.get('device_seconds')) is not None for one in listed)
    clocks = {'seconds': 'an iteration'}
    if is_on_device:
        clocks = {'device_seconds': 'on the device', 'seconds': 'on the host'}
    rows = _columns('stage', '>share', '', *(f'>{name}' for name in clocks.values()))
    for one in [*(one for one in parts if one not in cut), rest]:
        share = number(one.get('share'))
        bar = Text('█' * round(BAR * min(1.0, share or 0.0)), style='cyan')
        times = (duration(one.get(key)) for key in clocks)
        rows.add_row(Text(str(one.get('name', MISSING))), percent(share), bar, *times)
    lines = [f'{len(cut)} smaller ones are not listed.'] if cut else []
    remarks = [Text(line, style='dim') for line in [*lines, *stages.notes(found)]]
    return _below(stages.title(found), Group(rows, *remarks))


def _ranks(summary: Mapping[str, Any]) -> RenderableType | None:
    """Of each window, the process that took longest."""
    rows = _columns('an iteration', '>on average', '>in the last window', 'usually')
    for name, one in (summary.get('ranks') or {}).items():
        last = f'{duration(one.get("max"))}, rank {one.get("rank", MISSING)}'
        usual = ''
        if number(one.get('of')):
            usual = f'rank {one.get("usual")}, in {one.get("often")} of {one["of"]} windows'
        rows.add_row(Text(str(name)), duration(one.get('mean')), last, Text(usual))
    return _below('The slowest process', rows) if rows.row_count else None


def _causes(summary: Mapping[str, Any]) -> RenderableType | None:
    causes = (summary.get('lost') or {}).get('by_cause') or {}
    total = number(summary.get('seconds'))
    found = sorted(causes.items(), key=lambda row: -(number(row[1].get('seconds')) or 0.0))
    rows = _columns('cause', 'kind', '>stalls', '>lost', '>of the time')
    for cause, one in found[:MOST]:
        seconds = number(one.get('seconds'))
        share = percent(seconds / total) if seconds is not None and total else MISSING
        kind = Text(str(one.get('category', '')), style='dim')
        rows.add_row(Text(cause), kind, str(one.get('count', MISSING)), duration(seconds), share)
    if len(found) > MOST:
        more = found[MOST:]
        seconds = sum(number(one.get('seconds')) or 0.0 for _, one in more)
        count = sum(int(number(one.get('count')) or 0) for _, one in more)
        name = Text(f'{len(more)} more', style='dim')
        share = percent(seconds / total) if total else MISSING
        rows.add_row(name, '', str(count), duration(seconds), share)
    return _below('What stalls cost', rows) if found else None


def _stalls(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = _columns('>iteration', '>lost', 'what happened')
    for stall in (summary.get('stalls') or [])[:MOST]:
        what = stall.get('text') or stall.get('cause') or MISSING
        rows.add_row(str(stall.get('iter', MISSING)), duration(stall.get('lost')), Text(str(what)))
    return _below('The longest stalls', rows) if rows.row_count else None


def _periods(summary: Mapping[str, Any]) -> RenderableType | None:
    rows = Table.grid(padding=(0, 2))
    for period in summary.get('periods') or []:
        what = f' = {period["what"]}' if period.get('what') else ''
        text = period.get('text') or f'every {period.get("every", MISSING)} iterations{what}'
        cause = str(period.get('cause', ''))
        rows.add_row(Text(cause, style='dim'), Text(str(text).removeprefix(f'{cause}: ')))
    return _below('What comes back', rows) if rows.row_count else None


def _columns(*names: str) -> Table:
    """A table of these columns; '>' before a name: to the right."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style='dim')
    for name in names:
        is_right = name.startswith('>')
        found.add_column(
            name.removeprefix('>'),
            justify='right' if is_right else 'left',
            no_wrap=is_right,
            overflow='fold',
        )
    return found


def _below(title: str, content: RenderableType) -> RenderableType:
    parts: Iterable[RenderableType] = [Text(title, style='bold')] if title else []
    return Padding(Group(*parts, Padding(content, (0, 0, 0, 2))), (1, 0, 0, 0))
