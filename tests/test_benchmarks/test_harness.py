"""Benchmarks measure what they say: order, counts, checks, files; on a clock made for it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mmtempo.benchmarks.harness import Report, Timing, allocated_bytes, interleave, machine, ratio


def test_every_arm_runs_once_a_round_in_changing_order() -> None:
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


def test_counts_what_is_allocated(capfd: pytest.CaptureFixture) -> None:
    start = torch.ones(1000)
    assert allocated_bytes(lambda: None) == 0
    # A few bytes more for the numbers that become tensors.
    assert allocated_bytes(lambda: start + 1) == pytest.approx(4000, abs=50)
    assert allocated_bytes(lambda: (start + 1).mul_(2)) == pytest.approx(4000, abs=50)
    assert allocated_bytes(lambda: (start + 1) * 2) == pytest.approx(8000, abs=50)
    assert capfd.readouterr().err == ''


def test_report_says_what_is_met_and_what_is_missed(tmp_path: Path) -> None:
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


def test_machine_is_named() -> None:
    found = machine()
    assert found['torch'] == torch.__version__
    assert found['accelerator'] is None
    assert found['torch_threads'] == torch.get_num_threads()
