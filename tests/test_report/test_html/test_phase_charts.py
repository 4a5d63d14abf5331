"""Charts of phases and of memory."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.html.charts import colors_of
from mmtempo.report.html.phase_charts import SERIES, memory, recent, shares, shares_over_time
from tests.testing.made_up import write_run


@pytest.fixture(scope='module')
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_log(write_run(tmp_path_factory.mktemp('run')))


def test_shares_sum_to_100_percent(log: RunLog) -> None:
    colors = colors_of(log)
    bar, over_time = shares(log.summary['phases'], colors), shares_over_time(log.windows, colors)
    assert bar is not None
    assert over_time is not None
    for values in zip(*(trace['y'] for trace in over_time.data)):
        assert sum(values) == pytest.approx(100, abs=0.1)
    assert len(over_time.data) == SERIES  # of eleven phases; the smallest are 'other'
    assert over_time.data[-1]['name'] == 'other'
    assert sum(trace['x'][0] for trace in bar.data) == pytest.approx(100, abs=0.1)


def test_charts_without_data_are_omitted() -> None:
    assert shares({}, {}) is None
    assert shares_over_time([dict(iter=1, iterations=1, phases=dict(a=1.0))], {}) is None
    assert recent(dict(phases=['a'], rows=[[1, 0.0, 0.1]]), {}) is None
    assert memory([dict(iter=1)]) is None


def test_repeated_iterations_are_those_of_the_last_run() -> None:
    def window(last: int, run: int, data: float) -> dict:
        return dict(iter=last, iterations=10, run=run, phases=dict(data=data, forward=1.0))

    first = [window(last, 0, 1.0) for last in (10, 20, 30, 40)]
    second = [window(last, 1, 3.0) for last in (30, 40, 50)]
    chart = shares_over_time(first + second, dict(data='--a', forward='--b'))
    assert chart is not None
    (data,) = (trace for trace in chart.data if trace['name'] == 'data')
    assert data['x'] == [0, 10, 20, 30, 40, 50]
    assert data['y'] == [50, 50, 50, 75, 75, 75]


def test_evaluation_does_not_determine_the_scale_of_the_last_iterations() -> None:
    rows = [[i, 0.1 * i, 0.1] for i in range(100)]
    plain = recent(dict(phases=['data'], rows=rows), dict(data='--a'))
    assert plain is not None
    assert 'range' not in plain.layout['yaxis']
    rows[50][2] = 30.0
    chart = recent(dict(phases=['data'], rows=rows), dict(data='--a'))
    assert chart is not None
    assert chart.layout['yaxis']['range'] == [0, 200]
    assert 'exceed the top' in chart.note


@pytest.mark.parametrize(
    ('seconds', 'unit', 'y'), [(30.0, 's', 30), (0.03, 'ms', 30), (3e-5, 'us', 30)]
)
def test_last_iterations_have_the_unit_of_a_usual_one(seconds: float, unit: str, y: float) -> None:
    rows = [[i, i * seconds, seconds] for i in range(100)]
    chart = recent(dict(phases=['data'], rows=rows), dict(data='--a'))
    assert chart is not None
    (trace,) = chart.data
    assert chart.layout['yaxis']['title']['text'] == f'time, {unit}'
    assert set(trace['y']) == {y}
    assert trace['hovertemplate'] == f'%{{y:.3~r}} {unit}'


def test_memory_draws_only_what_was_measured(log: RunLog) -> None:
    chart = memory(log.windows)
    assert chart is not None
    names = [trace['name'] for trace in chart.data]
    assert 'device, allocated' in names
    shm = chart.data[names.index('/dev/shm used')]
    assert set(shm['y']) == {1.0}  # 15 of 16 GiB are free
    lines = [dict(iter=i, run=0, memory=dict(main_rss=1 << 30, swap_used=0)) for i in (1, 2)]
    chart = memory(lines)
    assert chart is not None
    (trace,) = chart.data
    assert (trace['name'], trace['y']) == ('main process (RSS)', [1.0, 1.0])


@pytest.mark.parametrize(
    ('sample', 'axes'),
    [
        (dict(main_rss=1 << 30), {None: 'GiB'}),
        (dict(main_rss=300 << 20, swap_used=4096), {None: 'MiB'}),
        (dict(ram_used=0.5), {None: 'in use'}),
        (dict(main_rss=1 << 30, ram_used=0.5), {None: 'GiB', 'y2': 'in use'}),
    ],
)
def test_sizes_and_shares_have_axes_of_their_unit(sample: dict[str, Any], axes: dict) -> None:
    chart = memory([dict(iter=1, memory=sample), dict(iter=2, memory=sample)])
    assert chart is not None
    titles = {None: chart.layout['yaxis'], 'y2': chart.layout.get('yaxis2')}
    found = {axis: titles[axis] for axis in (trace.get('yaxis') for trace in chart.data)}
    assert {axis: layout['title']['text'] for axis, layout in found.items()} == axes
