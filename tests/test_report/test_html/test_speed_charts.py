"""Charts of speed, iteration times and lost time."""

from __future__ import annotations

import json
import math

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.html.speed_charts import (
    MOST_CAUSES,
    histogram,
    largest_stalls,
    lost_by_cause,
    throughput,
)
from tests.testing.made_up import write_run


@pytest.fixture(scope='module')
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_log(write_run(tmp_path_factory.mktemp('run')))


def test_throughput_marks_every_stall_once(log: RunLog) -> None:
    chart = throughput(log.windows, log.stalls, log.summary['changes'])
    assert chart is not None
    traces = {trace['name']: trace for trace in chart.data}
    marks = [trace for name, trace in traces.items() if name.startswith('stall: ')]
    assert sorted(x for trace in marks for x in trace['x']) == [line['iter'] for line in log.stalls]
    gc = traces['stall: gc']
    assert gc['x'] == [333, 777, 1420]
    assert '<b>iteration 333</b>: garbage collection<br>lost 1' in gc['text'][0]
    took = next(line['seconds'] for line in log.stalls if line['iter'] == 333)
    assert gc['y'][0] == pytest.approx(1 / took, rel=1e-3)
    assert traces['steady']['x'][-1] == 2000
    (change,) = chart.layout['shapes']
    assert change['x0'] == 1601


def test_two_runs_are_not_joined_by_a_line() -> None:
    lines = [dict(iter=i, it_per_s=1.0, run=run) for run in (0, 1) for i in (10, 20)]
    chart = throughput(lines, [], [])
    assert chart is not None
    assert chart.data[0]['x'] == [10, 20, None, 10, 20]


@pytest.mark.parametrize(
    ('line', 'start'),
    [(dict(it_per_s=1.0), 'Mean of each window.'), (dict(it_per_s=1.0, steady=2.0), 'Steady exc')],
)
def test_note_explains_the_speeds_that_are_drawn(line: dict, start: str) -> None:
    chart = throughput([dict(line, iter=10)], [], [])
    assert chart is not None
    assert chart.note.startswith(start)
    assert throughput([dict(iter=10)], [], []) is None


def test_texts_of_a_log_are_escaped_for_plotly() -> None:
    stall = dict(iter=5, seconds=1.0, lost=1.0, cause='<img>', text='<a href="x">', category='<i>')
    chart = throughput([dict(iter=10, it_per_s=1.0)], [stall], [])
    assert chart is not None
    text = json.dumps(chart.data)
    assert '<img>' not in text
    assert '<a ' not in text
    assert '&lt;img&gt;' in text
    assert 'stall: &lt;i&gt;' in text


def test_largest_stalls_are_in_the_order_of_iterations() -> None:
    stalls = [dict(iter=i, lost=i % 10) for i in range(100)]
    assert [line['iter'] for line in largest_stalls(stalls, 10)] == list(range(9, 100, 10))
    assert largest_stalls([dict(iter=2), dict(iter=1)]) == [dict(iter=1), dict(iter=2)]


def test_histogram_has_no_empty_bins_at_its_ends(log: RunLog) -> None:
    chart = histogram(log.summary)
    assert chart is not None
    (trace,) = chart.data
    assert sum(trace['y']) == 2000
    assert trace['y'][0]
    assert trace['y'][-1]
    chart = histogram(dict(histogram=dict(edges=[0.0, 0.1, 0.2], counts=[1, 0])))
    assert chart is not None
    assert chart.data[0]['x'] == [0.075]  # a logarithmic axis has no 0
    for broken in ({}, dict(edges=[0.1, 0.2], counts=[0]), dict(edges=[0.1], counts=[1])):
        assert histogram(dict(histogram=broken)) is None


def test_histogram_has_round_ticks_and_quantiles() -> None:
    found = dict(edges=[0.1, 0.3, 1.0], counts=[5, 1])
    chart = histogram(dict(histogram=found, p50=0.1, p99=1.0))
    assert chart is not None
    assert chart.layout['xaxis']['tickvals'] == [0.1, 0.2, 0.5, 1.0]
    assert chart.layout['xaxis']['ticktext'] == ['100 ms', '200 ms', '500 ms', '1.00 s']
    labels = {label['text']: label['x'] for label in chart.layout['annotations']}
    assert labels == {'p50 100 ms': math.log10(0.1), 'p99 1.00 s': 0.0}
    wide = histogram(dict(histogram=dict(edges=[1e-5, 1e-3, 10.0], counts=[1, 1])))
    assert wide is not None
    assert wide.layout['xaxis']['ticktext'][:2] == ['10.0 us', '100 us']


def test_lost_time_shows_the_largest_causes() -> None:
    causes = {f'cause {i}': dict(seconds=float(i), count=i, category='gc') for i in range(1, 20)}
    chart = lost_by_cause(dict(lost=dict(by_cause=causes)))
    assert chart is not None
    (trace,) = chart.data
    assert len(trace['y']) == MOST_CAUSES
    assert (trace['y'][-1], trace['text'][-1]) == ('cause 19', '19.0 s in 19')
    assert lost_by_cause({}) is None
