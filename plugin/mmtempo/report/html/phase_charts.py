"""Charts of phases and of memory: over the run, and of the last iterations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmtempo.report.format import duration, number, significant
from mmtempo.utils.units import size_unit, time_unit

from .chart import Chart, Line, plain, series

BEYOND = 2  # top of the chart of the last iterations, relative to their 95th percentile
SERIES = 10  # phases that are drawn; smaller ones are summed as 'other'
_SIZES = (
    (('tree_pss',), 'all processes (PSS)', '--accent'),
    (('tree_rss',), 'all processes (RSS)', '--accent'),
    (('main_rss',), 'main process (RSS)', '--brown'),
    (('swap_used',), 'swap used', '--vermilion'),
    (('shm_used',), '/dev/shm used', '--grey'),
    (('device', 'allocated'), 'device, allocated', '--green'),
    (('device', 'reserved'), 'device, reserved', '--purple'),
)


def shares(phases: dict[str, Line], colors: dict[str, str]) -> Chart | None:
    """Return a stacked bar of the time of the run by phase."""
    if not phases:
        return None
    data = [
        dict(
            type='bar',
            orientation='h',
            x=[significant(100 * (number(entry.get('share')) or 0))],
            y=[''],
            name=plain(name),
            marker=dict(color=colors[name], line=dict(color='--surface', width=1)),
            hovertemplate=f'{plain(name)}: %{{x:.1f}} %, '
            f'{duration(entry.get("seconds"))}<extra></extra>',
            showlegend=False,
        )
        for name, entry in _by_share(phases)
    ]
    layout = dict(
        barmode='stack',
        hovermode='closest',
        margin=dict(t=4, b=30, l=10, r=10),
        xaxis=dict(range=[0, 100], ticksuffix=' %', showgrid=False),
        yaxis=dict(visible=False),
    )
    note = 'Share of the wall time of the run; the table has the same colors.'
    still = dict(displayModeBar=False)
    return Chart('shares', 'Time by phase', note, data, layout, height=96, config=still)


def shares_over_time(windows: list[Line], colors: dict[str, str]) -> Chart | None:
    """Return the shares of the wall time of each window, stacked."""
    windows = _latest([line for line in windows if line.get('phases')])
    if len(windows) < 2:
        return None
    first = windows[0]
    # A window is drawn from the end of the previous one, which the first one does not have.
    windows.insert(0, dict(first, iter=first['iter'] - first['iterations']))
    names = _names(windows)
    data = []
    for name in names:
        y = [significant(_share(line, name, names)) for line in windows]
        data.append(
            dict(
                x=[line['iter'] for line in windows],
                y=y,
                name=plain(name),
                mode='lines',
                stackgroup='phases',
                line=dict(width=0, shape='vh', color=colors[name]),
                fillcolor=colors[name],
                hovertemplate='%{y:.1f} %',
            )
        )
    layout = dict(
        xaxis=dict(title=dict(text='iteration')),
        yaxis=dict(title=dict(text='share of wall time'), range=[0, 100], ticksuffix=' %'),
        hovermode='x unified',
    )
    note = 'Each window, including evaluations and saves.'
    return Chart('phases', 'Phases over time', note, data, layout, height=340, has_key=True)


def _latest(windows: list[Line]) -> list[Line]:
    """Omit windows that a resumed run repeated: stacks need increasing iterations."""
    kept: list[Line] = []
    for line in reversed(windows):
        last = number(line.get('iter'))
        if last is None or not number(line.get('iterations')):
            continue
        if not kept or last <= kept[-1]['iter'] - kept[-1]['iterations']:
            kept.append(line)
    return kept[::-1]


def _names(windows: list[Line]) -> list[str]:
    """Return the phases with the largest sums, the largest first; the rest is 'other'."""
    sums: dict[str, float] = {}
    for line in windows:
        for name, value in line['phases'].items():
            sums[name] = sums.get(name, 0.0) + (number(value) or 0.0)
    names = sorted(filter(sums.get, sums), key=lambda name: -sums[name])
    return names if len(names) <= SERIES else [*names[: SERIES - 1], 'other']


def _share(line: Line, name: str, names: list[str]) -> float | None:
    """Return the share of a phase in a window, in percent."""
    phases = {key: number(value) or 0.0 for key, value in line['phases'].items()}
    whole = sum(phases.values())
    if not whole:
        return None
    if name == 'other' and name not in phases:
        return 100 * sum(value for key, value in phases.items() if key not in names) / whole
    return 100 * phases.get(name, 0.0) / whole


def recent(ring: Line, colors: dict[str, str]) -> Chart | None:
    """Return the time of each of the last iterations by phase."""
    names, rows = ring.get('phases') or [], ring.get('rows') or []
    if len(rows) < 2:
        return None
    totals = sorted(sum(filter(None, map(number, row[2:]))) for row in rows)
    usual = totals[int(0.95 * (len(totals) - 1))]
    unit, unit_name = time_unit(usual)
    data = []
    for column, name in enumerate(names, start=2):
        values = [number(row[column]) if len(row) > column else None for row in rows]
        if any(values):
            data.append(
                dict(
                    x=[row[0] for row in rows],
                    y=[significant((value or 0) / unit, 4) for value in values],
                    name=plain(name),
                    mode='lines',
                    stackgroup='phases',
                    line=dict(width=0, shape='hv', color=colors[name]),
                    fillcolor=colors[name],
                    hovertemplate=f'%{{y:.3~r}} {unit_name}',
                )
            )
    height: Line = dict(title=dict(text=f'time, {unit_name}'), rangemode='tozero')
    layout = dict(xaxis=dict(title=dict(text='iteration')), yaxis=height, hovermode='x unified')
    note = 'Time of each iteration by phase. Drag to zoom in, double-click to zoom out.'
    if totals[-1] > BEYOND * usual:
        # At the scale of an evaluation, the other iterations would be invisible.
        height['range'] = [0, significant(BEYOND * usual / unit, 3)]
        note += ' The longest iterations exceed the top; double-click again to show all of them.'
    title = f'The last {len(rows)} iterations'
    return Chart('recent', title, note, data, layout, height=320, has_key=True)


def _by_share(phases: dict[str, Line]) -> list[tuple[str, Line]]:
    return sorted(phases.items(), key=lambda entry: -(number(entry[1].get('share')) or 0))


def memory(windows: list[Line]) -> Chart | None:
    """Return memory and device over time: sizes in the upper part, shares in the lower one."""
    samples = [_with_used(line.get('memory') or {}) for line in windows]
    owner = next((one['ram_of'] for one in samples[::-1] if one.get('ram_of')), 'the machine')
    sizes = [(name, color, _values(samples, *path)) for path, name, color in _SIZES]
    unit, unit_name = size_unit(max((y for *_, ys in sizes for y in ys if y), default=0.0))
    used = (
        (f'RAM of {plain(owner)}', '--orange', _values(samples, 'ram_used')),
        ('device busy', '--olive', _values(samples, 'device', 'utilisation')),
    )
    upper = _memory_lines(windows, sizes, 1 / unit, f'%{{y:.3~r}} {unit_name}')
    lower = _memory_lines(windows, used, 100, '%{y:.1f} %')
    if not upper and not lower:
        return None
    layout: Line = dict(xaxis=dict(title=dict(text='iteration')), hovermode='x unified')
    in_bytes = dict(title=dict(text=unit_name), rangemode='tozero')
    in_use = dict(title=dict(text='in use'), range=[0, 100], ticksuffix=' %')
    if upper and lower:
        layout['xaxis']['anchor'] = 'y2'
        layout.update(yaxis=dict(in_bytes, domain=[0.42, 1]), yaxis2=dict(in_use, domain=[0, 0.34]))
        for trace in lower:
            trace['yaxis'] = 'y2'
    else:
        layout['yaxis'] = in_bytes if upper else in_use
    note = 'One sample per window.'
    return Chart('memory', 'Memory and device', note, upper + lower, layout, height=380)


def _values(samples: list[Line], *path: str) -> list[float | None]:
    found: list[Any] = samples
    for key in path:
        found = [one.get(key) if isinstance(one, dict) else None for one in found]
    return [number(one) for one in found]


def _memory_lines(windows: list[Line], lines: Iterable, scale: float, hover: str) -> list[Line]:
    """Return the traces of scaled values, except those that were not measured or are always 0."""
    traces = []
    for name, color, values in lines:
        x, y = series(windows, [None if one is None else scale * one for one in values])
        if any(y):
            line = dict(color=color, width=2)
            traces.append(dict(x=x, y=y, name=name, mode='lines', line=line, hovertemplate=hover))
    return traces


def _with_used(sample: Line) -> Line:
    """Add the used part of /dev/shm: its free part would determine the scale of the chart."""
    total, free = number(sample.get('shm_total')), number(sample.get('shm_free'))
    return sample if total is None or free is None else dict(sample, shm_used=total - free)
