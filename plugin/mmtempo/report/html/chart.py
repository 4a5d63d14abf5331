"""One figure as plain data; plotly.js draws it.

Colours are names of CSS variables (see page.css), which page.js replaces: so the same data is
drawn in light and in dark.
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
    """What plotly.js needs for one figure.

    Args:
        name: Of the element on the page.
        title: Above it.
        note: What to see in it, in a sentence.
        data: Traces.
        layout: What differs from the layout that all figures share.
        height: In pixels. Defaults to 300.
        config: Of plotly.js, what differs from what all figures share.
        has_key: Whether a table of the page has the same colours: a narrow page draws no legend,
            which would take more room than the figure. Defaults to False.
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
    """Iterations and values, as far as both are known; a gap between two runs."""
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
    """For plotly, which takes some tags in texts as HTML."""
    return html.escape(str(text), quote=False)


def wrapped(text: Any, width: int = 70) -> str:
    lines = textwrap.wrap('' if text is None else str(text), width)[:6]
    return '<br>'.join(map(plain, lines))
