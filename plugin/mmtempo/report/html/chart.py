"""Describe a chart as plain data, which plotly.js draws.

Colors are names of CSS variables (see page.css), which page.js resolves. Thus the same data is
drawn in the light and in the dark scheme.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmtempo.report.format import number, significant

Line = dict[str, Any]


@dataclass
class Chart:
    """A chart of the page.

    Args:
        name: Name of its element on the page.
        title: Heading.
        note: Explanation in a sentence.
        data: Traces of plotly.js.
        layout: Differences from the layout that all charts share.
        height: Height in pixels. Defaults to 300.
        config: Differences from the plotly.js config that all charts share.
        has_key: Whether a table of the page has the same colors, so that a narrow page can omit
            the legend, which would be larger than the chart. Defaults to False.
    """

    name: str
    title: str
    note: str
    data: list[Line]
    layout: Line
    height: int = 300
    config: Line = field(default_factory=dict)
    has_key: bool = False


def series(
    windows: list[Line], values: Iterable[float | None]
) -> tuple[list[Any], list[float | None]]:
    """Return iterations and values where both are known, with a gap between two runs."""
    x: list[Any] = []
    y: list[float | None] = []
    run = None
    for line, value in zip(windows, values):
        if value is None or number(line.get('iter')) is None:
            continue
        if x and line.get('run') != run:
            x.append(None)
            y.append(None)
        run = line.get('run')
        x.append(line['iter'])
        y.append(significant(value))
    return x, y


def plain(text: Any) -> str:
    """Escape a text for plotly.js, which interprets some tags as HTML."""
    return html.escape(str(text), quote=False)


def wrapped(text: Any, width: int = 70) -> str:
    """Break an escaped text into at most 6 lines.

    Args:
        text: The text; None is an empty one.
        width: Maximum length of a line in characters. Defaults to 70.
    """
    lines = textwrap.wrap('' if text is None else str(text), width)[:6]
    return '<br>'.join(map(plain, lines))
