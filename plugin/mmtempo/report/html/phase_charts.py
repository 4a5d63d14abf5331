"""Figures of the phases: of the run, over time, and of the last iterations."""

from __future__ import annotations

from mmtempo.report.format import duration, number, significant

from .chart import Chart, Line, plain

BEYOND = 2  # times what nearly all iterations take at most: the top of a chart of them
SERIES = 10  # phases that are drawn on their own; the smaller ones are 'other'


def shares(phases: dict[str, Line], colors: dict[str, str]) -> Chart | None:
    """One bar: where the time of the run went."""
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
    note = 'Where the wall time of the run went; the table has the same colours.'
    still = dict(displayModeBar=False)
    return Chart('shares', 'Where the time went', note, data, layout, height=96, config=still)


def shares_over_time(windows: list[Line], colors: dict[str, str]) -> Chart | None:
    """Shares of the wall time of each window, stacked."""
    windows = _last_word([line for line in windows if line.get('phases')])
    if len(windows) < 2:
        return None
    first = windows[0]
    # A window is drawn from the end of the one before to its own; the first one has none.
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
    note = 'Each window, evaluations and checkpoints included.'
    return Chart('phases', 'Phases over time', note, data, layout, height=340, has_key=True)


def _last_word(windows: list[Line]) -> list[Line]:
    """Without those whose iterations a resumed run has done again; stacks need rising ones."""
    kept: list[Line] = []
    for line in reversed(windows):
        last = number(line.get('iter'))
        if last is None or not number(line.get('iterations')):
            continue
        if not kept or last <= kept[-1]['iter'] - kept[-1]['iterations']:
            kept.append(line)
    return kept[::-1]


def _names(windows: list[Line]) -> list[str]:
    """Phases with the largest sums, the largest first; the rest is 'other'."""
    sums: dict[str, float] = {}
    for line in windows:
        for name, value in line['phases'].items():
            sums[name] = sums.get(name, 0.0) + (number(value) or 0.0)
    names = sorted(filter(sums.get, sums), key=lambda name: -sums[name])
    return names if len(names) <= SERIES else [*names[: SERIES - 1], 'other']


def _share(line: Line, name: str, names: list[str]) -> float | None:
    phases = {key: number(value) or 0.0 for key, value in line['phases'].items()}
    whole = sum(phases.values())
    if not whole:
        return None
    if name == 'other' and name not in phases:
        return 100 * sum(value for key, value in phases.items() if key not in names) / whole
    return 100 * phases.get(name, 0.0) / whole


def recent(ring: Line, colors: dict[str, str]) -> Chart | None:
    """The last iterations, one by one."""
    names, rows = ring.get('phases') or [], ring.get('rows') or []
    if len(rows) < 2:
        return None
    data = []
    for column, name in enumerate(names, start=2):
        values = [number(row[column]) if len(row) > column else None for row in rows]
        if any(values):
            data.append(
                dict(
                    x=[row[0] for row in rows],
                    y=[significant(1e3 * (value or 0), 4) for value in values],
                    name=plain(name),
                    mode='lines',
                    stackgroup='phases',
                    line=dict(width=0, shape='hv', color=colors[name]),
                    fillcolor=colors[name],
                    hovertemplate='%{y:.3~g} ms',
                )
            )
    height: Line = dict(title=dict(text='milliseconds'), rangemode='tozero')
    layout = dict(xaxis=dict(title=dict(text='iteration')), yaxis=height, hovermode='x unified')
    note = 'What each of them took, by phase. Drag to zoom in, double-click to go back.'
    totals = sorted(sum(filter(None, map(number, row[2:]))) for row in rows)
    usual = totals[int(0.95 * (len(totals) - 1))]
    if totals[-1] > BEYOND * usual:
        # Evaluations would leave nothing to see of all others.
        height['range'] = [0, significant(1e3 * BEYOND * usual, 3)]
        note += ' What takes longest goes beyond the top: double-click once more to see it whole.'
    title = f'The last {len(rows)} iterations'
    return Chart('recent', title, note, data, layout, height=320, has_key=True)


def _by_share(phases: dict[str, Line]) -> list[tuple[str, Line]]:
    return sorted(phases.items(), key=lambda entry: -(number(entry[1].get('share')) or 0))
