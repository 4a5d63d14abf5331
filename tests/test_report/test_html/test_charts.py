"""The list of charts, their colors, and the thinning of long runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.html.chart import Chart
from mmtempo.report.html.charts import POINTS, charts, colors_of, thin_windows
from tests.testing.made_up import PHASES, write_run


@pytest.fixture(scope='module')
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_log(write_run(tmp_path_factory.mktemp('run')))


def drawn(log: RunLog) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(log, colors_of(log))}


def test_complete_run_has_all_charts(log: RunLog) -> None:
    found = drawn(log)
    assert list(found) == [
        'throughput', 'shares', 'phases', 'lost', 'histogram', 'recent', 'memory',
    ]  # fmt: skip
    json.dumps([chart.data for chart in found.values()], allow_nan=False)


def test_empty_log_has_no_charts() -> None:
    assert charts(RunLog(Path()), {}) == []


def test_charts_of_stock_logs_refer_to_their_limits() -> None:
    window = dict(iter=10, iterations=10, seconds=1.0, it_per_s=10.0, phases=dict(data=1.0))
    log = RunLog(Path(), 'stock', windows=[window, dict(window, iter=20)])
    found = drawn(log)
    assert set(found) == {'throughput', 'phases'}
    assert {chart.note for chart in found.values()} == {
        'From stock logs; their limits are listed above.'
    }
    assert found['throughput'].data[0]['name'] == 'as logged'


def test_phase_has_one_color_in_all_charts(log: RunLog) -> None:
    found = drawn(log)
    colors = colors_of(log)
    assert set(PHASES) <= set(colors)
    for name in ('shares', 'phases', 'recent'):
        for trace in found[name].data:
            color = trace.get('fillcolor') or trace['marker']['color']
            assert color == colors[trace['name']]


def windows(count: int, run: int = 0) -> list[dict]:
    return [
        dict(iter=50 * (i + 1), iterations=50, seconds=5.0 + i % 2, it_per_s=50 / (5.0 + i % 2),
             steady=10.0, phases=dict(data=1.0, forward=4.0 + i % 2), run=run)
        for i in range(count)
    ]  # fmt: skip


def test_few_windows_are_not_merged() -> None:
    found = windows(POINTS)
    assert thin_windows(found) == found
    assert thin_windows([]) == []


def test_merged_windows_keep_all_time_and_iterations() -> None:
    found = windows(4001)
    thin = thin_windows(found)
    assert len(thin) <= 800
    assert sum(line['iterations'] for line in thin) == 50 * 4001
    assert sum(line['phases']['data'] for line in thin) == pytest.approx(4001)
    assert thin[0]['iter'] == 300
    assert thin[0]['it_per_s'] == pytest.approx(300 / 33)
    assert thin[0]['steady'] == pytest.approx(10)
    assert thin[-1]['iter'] == found[-1]['iter']


def test_short_last_window_is_merged_into_the_previous_one() -> None:
    last = dict(iter=201, iterations=1, seconds=2.0, steady=0.5, run=0, phases=dict(data=2.0))
    *rest, end = thin_windows([*windows(4), last])
    assert [line['iter'] for line in rest] == [50, 100, 150]
    assert (end['iter'], end['iterations'], end['phases']['data']) == (201, 51, 3.0)
    assert end['it_per_s'] == pytest.approx(51 / 8)
    assert end['steady'] == 10.0  # that of the long window
    alone = dict(last, run=1)
    assert thin_windows([*windows(4), alone])[-1] == alone


def test_short_windows_of_epochs_are_merged() -> None:
    """Of an epoch of 53 iterations, the last window has 3, one of which has an evaluation."""
    found = []
    for epoch in range(4):
        (long,) = windows(1)
        long['iter'] = 53 * epoch + 50
        short = dict(iter=53 * epoch + 53, iterations=3, seconds=10.0, it_per_s=0.3, steady=0.3)
        found += [long, dict(short, run=0, phases=dict(evaluation=10.0))]
    thin = thin_windows(found)
    assert [(line['iterations'], line['steady']) for line in thin] == [(53, 10.0)] * 4
    assert sum(line['phases']['evaluation'] for line in thin) == 40.0


def test_short_first_window_of_a_resumed_run_is_merged_into_the_next_one() -> None:
    first = dict(iter=5, iterations=5, seconds=2.0, it_per_s=2.5, steady=2.5, run=1)
    short_runs = [dict(line, iterations=10) for line in windows(4, run=2)]
    thin = thin_windows([*windows(2), first, *windows(2, run=1), *short_runs])
    assert [(line['run'], line['iterations']) for line in thin] == [
        (0, 50), (0, 50), (1, 55), (1, 50), *[(2, 10)] * 4,
    ]  # fmt: skip
    assert thin[2]['steady'] == 10.0


def test_windows_of_two_runs_are_not_merged() -> None:
    thin = thin_windows(windows(5) + windows(5, run=1), points=4)
    assert [(line['run'], line['iterations']) for line in thin] == [
        (0, 150), (0, 100), (1, 150), (1, 100),
    ]  # fmt: skip
