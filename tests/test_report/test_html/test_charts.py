"""The data of the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.html.chart import Chart
from mmtempo.report.html.charts import charts, colors_of
from mmtempo.report.html.phase_charts import recent, shares_over_time
from mmtempo.report.html.speed_charts import histogram, throughput
from tests.testing.made_up import PHASES, write_run


@pytest.fixture(scope='module')
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_log(write_run(tmp_path_factory.mktemp('run')))


def drawn(log: RunLog) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(log, colors_of(log))}


def test_all_of_them(log: RunLog) -> None:
    found = drawn(log)
    assert list(found) == [
        'throughput', 'shares', 'phases', 'lost', 'histogram', 'recent', 'memory',
    ]  # fmt: skip
    json.dumps([chart.data for chart in found.values()], allow_nan=False)


def test_an_empty_log_has_none() -> None:
    assert charts(RunLog(Path()), {}) == []


def test_throughput_marks_every_stall_once(log: RunLog) -> None:
    traces = {trace['name']: trace for trace in drawn(log)['throughput'].data}
    marks = [trace for name, trace in traces.items() if name.startswith('stall: ')]
    assert sorted(x for trace in marks for x in trace['x']) == [line['iter'] for line in log.stalls]
    gc = traces['stall: gc']
    assert gc['x'] == [333, 777, 1420]
    assert '<b>iteration 333</b>: garbage collection<br>lost 1' in gc['text'][0]
    took = next(line['seconds'] for line in log.stalls if line['iter'] == 333)
    assert gc['y'][0] == pytest.approx(1 / took, rel=1e-3)
    assert traces['steady']['x'][-1] == 2000
    (change,) = drawn(log)['throughput'].layout['shapes']
    assert change['x0'] == 1601


def test_two_runs_are_not_joined_by_a_line() -> None:
    lines = [dict(iter=i, it_per_s=1.0, run=run) for run in (0, 1) for i in (10, 20)]
    chart = throughput(lines, [], [])
    assert chart is not None
    assert chart.data[0]['x'] == [10, 20, None, 10, 20]


def test_shares_sum_to_a_hundred(log: RunLog) -> None:
    found = drawn(log)
    over_time = found['phases'].data
    for values in zip(*(trace['y'] for trace in over_time)):
        assert sum(values) == pytest.approx(100, abs=0.1)
    assert len(over_time) == 10  # of eleven phases; the smallest are 'other'
    assert over_time[-1]['name'] == 'other'
    assert sum(trace['x'][0] for trace in found['shares'].data) == pytest.approx(100, abs=0.1)


def test_phases_of_iterations_done_again_are_those_of_the_last_run() -> None:
    def window(last: int, run: int, data: float) -> dict:
        return dict(iter=last, iterations=10, run=run, phases=dict(data=data, forward=1.0))

    first = [window(last, 0, 1.0) for last in (10, 20, 30, 40)]
    second = [window(last, 1, 3.0) for last in (30, 40, 50)]
    chart = shares_over_time(first + second, dict(data='--a', forward='--b'))
    assert chart is not None
    (data,) = (trace for trace in chart.data if trace['name'] == 'data')
    assert data['x'] == [0, 10, 20, 30, 40, 50]
    assert data['y'] == [50, 50, 50, 75, 75, 75]


def test_the_last_iterations_are_not_dwarfed_by_an_evaluation() -> None:
    rows = [[i, 0.1 * i, 0.1] for i in range(100)]
    plain = recent(dict(phases=['data'], rows=rows), dict(data='--a'))
    assert plain is not None
    assert 'range' not in plain.layout['yaxis']
    rows[50][2] = 30.0
    chart = recent(dict(phases=['data'], rows=rows), dict(data='--a'))
    assert chart is not None
    assert chart.layout['yaxis']['range'] == [0, 200]
    assert 'beyond the top' in chart.note


def test_a_phase_has_one_color_everywhere(log: RunLog) -> None:
    found = drawn(log)
    colors = colors_of(log)
    assert set(PHASES) <= set(colors)
    for name in ('shares', 'phases', 'recent'):
        for trace in found[name].data:
            color = trace.get('fillcolor') or trace['marker']['color']
            assert color == colors[trace['name']]


def test_histogram_begins_and_ends_where_there_is_something(log: RunLog) -> None:
    (trace,) = drawn(log)['histogram'].data
    assert sum(trace['y']) == 2000
    assert trace['y'][0]
    assert trace['y'][-1]
    chart = histogram(dict(histogram=dict(edges=[0.0, 0.1, 0.2], counts=[1, 0])))
    assert chart is not None
    assert chart.data[0]['x'] == [0.075]  # no zero on a logarithmic axis


def test_what_a_log_says_is_text_also_for_plotly() -> None:
    stall = dict(iter=5, seconds=1.0, lost=1.0, cause='<img>', text='<a href="x">', category='<i>')
    chart = throughput([dict(iter=10, it_per_s=1.0)], [stall], [])
    assert chart is not None
    text = json.dumps(chart.data)
    assert '<img>' not in text
    assert '<a ' not in text
    assert '&lt;img&gt;' in text
    assert 'stall: &lt;i&gt;' in text


def test_memory_draws_only_what_was_measured(log: RunLog) -> None:
    names = [trace['name'] for trace in drawn(log)['memory'].data]
    assert 'device, allocated' in names
    shm = drawn(log)['memory'].data[names.index('/dev/shm used')]
    assert set(shm['y']) == {1.0}  # 15 of 16 GiB are free
    lines = [dict(iter=i, run=0, memory=dict(main_rss=1 << 30, swap_used=0)) for i in (1, 2)]
    (trace,) = drawn(RunLog(Path(), windows=lines))['memory'].data
    assert (trace['name'], trace['y']) == ('main process (RSS)', [1.0, 1.0])
