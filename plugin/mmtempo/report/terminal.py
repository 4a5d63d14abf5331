"""Format a summary as a table for a terminal, or as plain text for a log."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import sections
from .format import MISSING, duration, iterations, number, percent

BAR = 16  # characters for 100 %
# Replacements of characters that a log file or its reader may not support.
PLAIN = str.maketrans({'█': '#', '─': '-', '…': '~', '·': '-', MISSING: '-', '\u202f': ' '})
COLORS = {'completed': 'green', 'crashed': 'red', 'interrupted': 'yellow'}


def table(summary: Mapping[str, Any]) -> RenderableType:
    """Return the table that is shown at the end of a run.

    ::

        verdict, why, what to change
        key figures
        phases      shares
        stages      of the forward pass
        processes   the slowest
        stalls      by cause, the longest, periods

    Args:
        summary: The content of a `tempo_summary.json`; missing figures have no row.
    """
    found = (
        sections.phases(summary, brief=True),
        sections.stages(summary, brief=True),
        sections.ranks(summary),
        sections.causes(summary),
        sections.stalls(summary, brief=True),
        sections.periods(summary),
    )
    return Group(
        _title(summary),
        *_verdict(summary.get('verdict') or {}),
        *_figures(summary),
        *(_section(one.title, _table(one), *one.notes) for one in found if one.rows),
    )


def to_text(summary: Mapping[str, Any], width: int = 100) -> str:
    """Return the same table for a log file: no colors, and only ASCII besides names.

    Args:
        summary: The content of a `tempo_summary.json`.
        width: Maximum length of a line in characters. Defaults to 100.
    """
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(table(summary))
    lines = file.getvalue().translate(PLAIN).splitlines()
    return '\n'.join(line.rstrip() for line in lines).strip('\n')


def _title(summary: Mapping[str, Any]) -> Text:
    title = Text('Throughput', style='bold')
    facts = (('iterations', iterations, ''), ('seconds', duration, 'in '))
    known = [
        f'{word}{show(summary[key])}' for key, show, word in facts if summary.get(key) is not None
    ]
    status = str(summary.get('status') or '')
    title.append(f'  {" ".join(known)}', style='dim')
    title.append(f'  {status}', style=COLORS.get(status, ''))
    if summary.get('error'):
        title.append(f': {summary["error"]}', style='red')
    return title


def _verdict(verdict: Mapping[str, Any]) -> list[RenderableType]:
    if not verdict.get('headline'):
        return []
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
    return [_section('', *parts)]


def _figures(summary: Mapping[str, Any]) -> list[RenderableType]:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style='dim', no_wrap=True)
    for figure in sections.figures(summary):
        grid.add_row(figure.name, f'{figure.value}, {figure.note}' if figure.note else figure.value)
    return [_section('Speed', grid)] if grid.row_count else []


def _table(section: sections.Section) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0), header_style='dim')
    columns = list(section.columns(brief=True))
    for name, is_text, cells in columns:
        is_left = is_text or isinstance(cells[0], sections.Share)
        justify: Any = 'left' if is_left else 'right'
        found.add_column(name, justify=justify, no_wrap=not is_text, overflow='fold')
    for row in zip(*(cells for *_, cells in columns)):
        found.add_row(*map(_cell, row))
    return found


def _cell(cell: Any) -> Text:
    """Return a cell; text in brackets is not markup of rich."""
    if isinstance(cell, sections.Share):
        bar = '█' * round(BAR * min(1.0, number(cell.value) or 0.0))
        return Text(f'{percent(cell.value):>7}  ').append(bar, style='cyan')
    return Text(cell.text if isinstance(cell, sections.Sentence) else str(cell))


def _section(title: str, *content: RenderableType) -> RenderableType:
    heading = [Text(title, style='bold')] if title else []
    parts = [Text(part, style='dim') if isinstance(part, str) else part for part in content]
    return Padding(Group(*heading, Padding(Group(*parts), (0, 0, 0, 2))), (1, 0, 0, 0))
