"""Charts of speed: over time, by duration of an iteration, and of the time lost."""

from __future__ import annotations

import math
from typing import Any

from mmtempo.report.format import duration, number, significant

from .chart import Chart, Line, plain, series, wrapped
from .colors import CATEGORIES, SYMBOLS

MARKS = 600  # stalls that are marked
MOST_CHANGES = 20  # changes of the usual iteration time that are drawn
MOST_CAUSES = 12


def throughput(
    windows: list[Line], stalls: list[Line], changes: list[Line], whole: str = 'end to end'
) -> Chart | None:
    """Return iterations per second of each window, and stalls at the speed of their iteration.

    Args:
        windows: Lines of log windows.
        stalls: Lines of slow iterations; the largest are marked.
        changes: Lines of changes of the usual iteration time; the latest are drawn.
        whole: Name of the speed that includes all of the time. Defaults to 'end to end'.
    """
    data: list[Line] = []
    for key, name, style in (
        ('it_per_s', whole, dict(color='--muted', width=1.5)),
        ('steady', 'steady', dict(color='--accent', width=2.5)),
    ):
        x, y = series(windows, [number(line.get(key)) for line in windows])
        if x:
            hover = f'{name}: %{{y:.3~r}} it/s<br>up to iteration %{{x}}<extra></extra>'
            mode = 'lines' if len(x) > 1 else 'markers'
            data.append(dict(x=x, y=y, name=name, mode=mode, line=style, hovertemplate=hover))
    if not data:
        return None
    # Lines contain all stalls, a summary only the largest ones.
    marked = [line for line in largest_stalls(stalls) if number(line.get('iter')) is not None]
    categories: dict[str, list[Line]] = {}
    for line in marked:
        categories.setdefault(str(line.get('category', 'unexplained')), []).append(line)
    for category, lines in categories.items():
        data.append(_marks(category, lines))
    note = 'Mean of each window.'
    if len(data) > len(categories) + 1:
        note = f'Steady excludes stalls, evaluations and saves; {whole} includes them.'
    if marked:
        note += ' Marks are slow iterations, at their own speed'
        is_all = len(marked) == len(stalls)
        note += '.' if is_all else f' (the {len(marked)} costliest of {len(stalls)}).'
    if changes:
        note += ' Dashed lines: the usual iteration time changed.'
    layout = dict(
        shapes=[_vertical_line(line.get('iter'), 'dash') for line in changes[-MOST_CHANGES:]],
        xaxis=dict(title=dict(text='iteration')),
        yaxis=dict(title=dict(text='iterations per second'), range=_from_zero(data)),
    )
    return Chart('throughput', 'Throughput', note, data, layout, height=380)


def largest_stalls(stalls: list[Line], count: int = MARKS) -> list[Line]:
    """Return the stalls that cost most, in the order of their iterations."""
    if len(stalls) > count:
        stalls = sorted(stalls, key=lambda line: -(number(line.get('lost')) or 0))[:count]
    return sorted(stalls, key=lambda line: (line.get('run', 0), number(line.get('iter')) or 0))


def _from_zero(data: list[Line]) -> list[float | None]:
    """Return an axis range with room for half a mark below 0, where evaluations are marked."""
    top = max((y for trace in data for y in trace['y'] if y), default=1.0)
    return [significant(-0.04 * top, 3), significant(1.08 * top, 3)]


def _vertical_line(x: Any, dash: str) -> Line:
    line = dict(color='--muted', width=1, dash=dash)
    return dict(type='line', x0=x, x1=x, yref='paper', y0=0, y1=1, line=line)


def _marks(category: str, lines: list[Line]) -> Line:
    """Return the trace of the stalls of a category."""
    texts = [
        f'<b>iteration {line["iter"]}</b>: {plain(line.get("cause", category))}<br>'
        f'lost {duration(line.get("lost"))}, took {duration(line.get("seconds"))}'
        f'<br>{wrapped(line.get("text"))}'
        for line in lines
    ]
    return dict(
        x=[line['iter'] for line in lines],
        y=[_inverse(line.get('seconds')) for line in lines],
        name=f'stall: {plain(category)}',
        mode='markers',
        marker=dict(
            color=CATEGORIES.get(category, '--grey'),
            symbol=SYMBOLS.get(category, 'circle'),
            size=9,
            line=dict(color='--muted', width=1),  # yellow without a border is faint on white
        ),
        text=texts,
        hovertemplate='%{text}<extra></extra>',
    )


def histogram(summary: Line) -> Chart | None:
    """Return the histogram of iteration times, on logarithmic axes that show rare slow ones."""
    found = summary.get('histogram') or {}
    edges, counts = found.get('edges') or [], found.get('counts') or []
    filled = [index for index, count in enumerate(counts) if count]
    if not filled or len(edges) != len(counts) + 1 or edges[filled[0]] is None:
        return None
    bins = [
        (low or high / 2, high, count)  # the first bin may start at 0, which has no logarithm
        for low, high, count in list(zip(edges, edges[1:], counts))[filled[0] : filled[-1] + 1]
        if number(high)
    ]
    trace = dict(
        type='bar',
        x=[significant((low + high) / 2) for low, high, _ in bins],
        y=[count for *_, count in bins],
        width=[significant(high - low) for low, high, _ in bins],
        marker=dict(color='--accent', line=dict(width=0)),
        text=[f'{duration(low)} to {duration(high)}' for low, high, _ in bins],
        textposition='none',
        hovertemplate='%{text}: %{y} iterations<extra></extra>',
        showlegend=False,
    )
    shapes, annotations = _quantiles(summary)
    ticks = _ticks(bins[0][0], bins[-1][1])
    layout = dict(
        bargap=0,
        hovermode='closest',
        shapes=shapes,
        annotations=annotations,
        xaxis=dict(
            type='log',
            title=dict(text='time of an iteration'),
            tickvals=ticks,
            ticktext=[duration(tick) for tick in ticks],
        ),
        yaxis=dict(type='log', title=dict(text='iterations'), dtick=1),
    )
    note = 'Both axes are logarithmic, so that single slow iterations are visible.'
    return Chart('histogram', 'Iteration times', note, [trace], layout, height=320)


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10, ... between two values; only decades if there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = [float(f'{step}e{decade}') for decade in decades for step in steps]
    return [tick for tick in ticks if 0.999 * low <= tick <= 1.001 * high]


def _quantiles(summary: Line) -> tuple[list[Line], list[Line]]:
    """Return a line and a label for each quantile."""
    shapes, annotations = [], []
    for level, key in enumerate(('p50', 'p95', 'p99')):
        value = number(summary.get(key))
        if value:
            shapes.append(_vertical_line(value, 'dot'))
            annotations.append(
                dict(
                    x=math.log10(value),  # plotly.js places annotations by the logarithm
                    y=1 - 0.07 * level,
                    text=f'{key} {duration(value)}',
                    yref='paper', xanchor='left', yanchor='top', showarrow=False, xshift=3,
                )
            )  # fmt: skip
    return shapes, annotations


def lost_by_cause(summary: Line) -> Chart | None:
    """Return the seconds lost to stalls by cause."""
    causes = (summary.get('lost') or {}).get('by_cause') or {}
    rows = sorted(causes.items(), key=lambda row: number(row[1].get('seconds')) or 0)
    rows = rows[-MOST_CAUSES:]
    if not rows:
        return None
    longest = max(number(entry.get('seconds')) or 0.0 for _, entry in rows)
    trace = dict(
        type='bar',
        orientation='h',
        x=[significant(entry.get('seconds')) for _, entry in rows],
        y=[plain(cause) for cause, _ in rows],
        marker=dict(
            color=[CATEGORIES.get(str(entry.get('category')), '--grey') for _, entry in rows]
        ),
        text=[
            f'{duration(entry.get("seconds"))} in {entry.get("count", "?")}' for _, entry in rows
        ],
        textposition='outside',
        cliponaxis=False,
        hovertemplate='%{y}: %{text} stalls<extra></extra>',
        showlegend=False,
    )
    layout = dict(
        hovermode='closest',
        # Leave room for the text at the end of the longest bar.
        xaxis=dict(title=dict(text='seconds lost'), range=[0, significant(1.4 * longest, 3)]),
        yaxis=dict(automargin=True, showgrid=False),
    )
    note = 'Seconds above the usual time of an iteration, and the number of iterations.'
    return Chart('lost', 'Time lost by cause', note, [trace], layout, height=320)


def _inverse(seconds: Any) -> float | None:
    value = number(seconds)
    return significant(1 / value) if value else None
