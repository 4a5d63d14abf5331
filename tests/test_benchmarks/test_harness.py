"""Order of rounds, statistics, checks and files of the benchmarks, on a fake clock."""

from __future__ import annotations

import gc
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mmtempo.benchmarks.harness import (
    Report,
    Timing,
    allocated_bytes,
    interleave,
    machine,
    ratio,
    take_rounds,
)


def test_each_arm_runs_once_a_round_in_random_order() -> None:
    ran: list[str] = []
    time = [0.0]

    def arm(name: str, takes: float) -> None:
        ran.append(name)
        time[0] += takes

    arms = {
        'slow': lambda: arm('slow', 4.0),
        'fast': lambda: arm('fast', 1.0),
        'other': lambda: arm('other', 2.0),
    }
    timings = interleave(arms, rounds=6, warm_up=2, clock=lambda: time[0])
    rounds = [ran[i : i + 3] for i in range(0, len(ran), 3)]
    assert len(rounds) == 8
    assert all(sorted(names) == ['fast', 'other', 'slow'] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert timings['slow'].seconds == [4.0] * 6
    assert ratio(timings['slow'], timings['fast']).median == 4.0


def test_warm_up_does_not_count() -> None:
    time, durations = [0.0], iter([100.0, 100.0, 1.0, 2.0, 3.0])

    def work() -> None:
        time[0] += next(durations)

    timing = interleave({'work': work}, rounds=3, warm_up=2, clock=lambda: time[0])['work']
    assert timing.seconds == [1.0, 2.0, 3.0]
    assert timing.figures() == dict(median_ms=2000.0, iqr_ms=[1500.0, 2500.0], n=3)
    assert str(Timing([0.001, 0.002, 0.003])) == '2.00 [1.50, 2.50]'


def test_statistics_of_values_that_are_not_seconds() -> None:
    timing = Timing([1.0, 2.0, 3.0])
    assert timing.plain_figures() == dict(median=2.0, iqr=[1.5, 2.5], n=3)
    assert timing.text(1) == '2.0 [1.5, 2.5]'
    assert timing.text(0, 1e3) == '2000 [1500, 2500]'


def test_rounds_are_in_random_order_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr('os.sync', lambda: ran.append('sync'), raising=False)

    def work(name: str) -> tuple[str, bool]:
        ran.append(name)
        return name, gc.isenabled()

    works = {name: lambda name=name: work(name) for name in 'abc'}
    found = take_rounds(works, 4, warm_up=2)
    assert found == {name: [(name, False)] * 4 for name in 'abc'}
    assert gc.isenabled()
    assert ran[::2] == ['sync'] * 18
    orders = {tuple(ran[n + 1 : n + 6 : 2]) for n in range(0, 36, 6)}
    assert len(orders) > 1
    assert all(sorted(order) == ['a', 'b', 'c'] for order in orders)
    ran.clear()
    take_rounds(works, 1, sync=False)
    assert sorted(ran) == ['a', 'b', 'c']


def test_failed_round_restores_garbage_collection() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError):
        take_rounds(dict(fails=lambda: 1 / 0), 1, sync=False)
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_allocations_are_counted(capfd: pytest.CaptureFixture) -> None:
    start = torch.ones(1000)
    assert allocated_bytes(lambda: None) == 0
    # A few more bytes for numbers that are converted to tensors.
    assert allocated_bytes(lambda: start + 1) == pytest.approx(4000, abs=50)
    assert allocated_bytes(lambda: (start + 1).mul_(2)) == pytest.approx(4000, abs=50)
    assert allocated_bytes(lambda: (start + 1) * 2) == pytest.approx(8000, abs=50)
    assert capfd.readouterr().err == ''


def test_report_shows_met_and_missed_bars(tmp_path: Path) -> None:
    report = Report('name', arms={'arm': dict(n=3)})
    report.at_least('times faster', 16.0, 15.0)
    report.at_most('bytes', 0.25, 0.25)
    assert report.ok
    report.at_most('waits', 2, 0)
    assert not report.ok
    output = io.StringIO()
    report.show(Console(file=output, width=120))
    text = output.getvalue()
    assert 'ok   times faster: 16 (>= 15)' in text
    assert 'MISS waits: 2 (<= 0)' in text
    assert f'torch {torch.__version__}' in text
    report.write(str(tmp_path / 'report.json'))
    content = json.loads((tmp_path / 'report.json').read_text())
    assert set(content) == {'benchmark', 'machine', 'arms', 'checks'}
    assert content['checks'][2] == dict(name='waits', value=2, limit=0, ok=False)
    assert content['machine']['cores'] >= 1


@pytest.mark.parametrize(('value', 'code'), [(0, 0), (1, 1)])
def test_exit_code_tells_whether_all_bars_are_met(
    value: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    report = Report('name')
    report.at_most('waits', value, 0)
    assert report.finish(None) == code
    assert list(tmp_path.iterdir()) == []
    assert report.finish(str(tmp_path / 'report.json')) == code
    assert json.loads((tmp_path / 'report.json').read_text())['checks'][0]['value'] == value
    assert capsys.readouterr().out.count(f'waits: {value} (<= 0)') == 2


def test_columns_are_aligned() -> None:
    report = Report('name')
    table = report.add_table('title', ('arm', 'ms'), left=('arm',))
    assert report.tables == [table]
    assert [(column.header, column.justify) for column in table.columns] == [
        ('arm', 'left'),
        ('ms', 'right'),
    ]


def test_machine_is_described() -> None:
    found = machine()
    assert found['torch'] == torch.__version__
    assert found['accelerator'] is None
    assert found['torch_threads'] == torch.get_num_threads()
