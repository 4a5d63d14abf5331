"""Sums, bars and JSON keys of the checkpoint benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.checkpoint import arms as checkpoint_arms
from mmtempo.benchmarks.checkpoint import measure
from mmtempo.benchmarks.checkpoint.arms import SHAPES, Arm, Round, Shape
from mmtempo.benchmarks.checkpoint.measure import Plan, Probes, losses, measure_checkpoint
from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.side_effects import Effect

REAL = checkpoint_arms.CONFIG
TINY = 8  # width of the backbone
pytestmark = pytest.mark.usefixtures('small_config')


def nothing() -> None:
    pass


def test_losses_are_relative_to_the_same_round() -> None:
    # All iterations are slower in the second round, with the same loss.
    rounds = {
        'no save': [Round([1.0, 1.0, 4.0]), Round([2.0, 2.0, 2.0])],
        'stock': [Round([3.0, 1.0], hook=2.0), Round([4.0, 2.0], hook=2.0)],
    }
    found = losses(rounds)
    assert found['no save']['lost'].seconds == [3.0, 0.0]
    assert found['stock']['lost'].seconds == [2.0, 2.0]
    assert found['stock']['interference'].seconds == [0.0, 0.0]


def test_probes_move_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr('os.fsync', lambda _: sizes.append((tmp_path / 'probe').stat().st_size))
    probes = Probes(str(tmp_path), 12345)
    for name in ('memcpy', 'raw write + fsync', 'raw write + fsync'):
        probes.run(name)
    assert sizes == [12345, 12345]
    assert bytes(probes._target) == b'\x01' * 12345
    assert {name: len(found) for name, found in probes.seconds.items()} == {
        'memcpy': 1,
        'raw write + fsync': 2,
    }
    assert list(tmp_path.iterdir()) == []


def test_each_shape_has_a_bar() -> None:
    assert set(measure.MAX_LOST) == set(SHAPES)


def test_state_has_the_size_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_arms, 'CONFIG', REAL)
    arm = Arm('no save', measure.STATES['100 MB'], str(tmp_path))
    assert arm.state_bytes == pytest.approx(100e6, rel=0.01)
    assert 200 < len(list(arm.runner.model.parameters())) < 300
    assert arm.runner.cfg.filename.endswith('lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('os.sync', nothing)
    threads: list[int] = []
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    shape = Shape(nothing, threads=2)
    monkeypatch.setattr(measure, 'SHAPES', {'sleep': Shape(nothing), 'matmul 1': shape})
    monkeypatch.setattr(measure, 'STATES', {'small': TINY})
    plan = Plan(['small'], ['sleep', 'matmul 1'], ['no save', 'stock', 'ours'], 2, (1, 0))
    monkeypatch.setattr(measure, 'QUICK', plan)
    asked: list[list[str]] = []

    def peak_of(command: list[str]) -> tuple[int, int]:
        asked.append(command)
        return 100, 100 + 10 * len(asked)

    def measure_side_effects(report: Report, parts: list, judged: list, *options: Any) -> dict:
        assert (judged, *options) == (['save'], True, '--width', str(TINY))
        lost = {'no save': 0.1, 'save by stock': 2.0, 'save': 0.5}
        report.arms.update({f'own processes, {part}': {} for part in parts})
        return {part: [Effect([1.0], [1.0], lost=lost[part])] * 2 for part in parts}

    monkeypatch.setattr(process_memory, 'peak_of', peak_of)
    monkeypatch.setattr(measure, 'measure_side_effects', measure_side_effects)
    report = measure_checkpoint(quick=True)
    assert threads == [1, 1, 2, 1]  # the previous number is restored each time
    assert list(tmp_path.iterdir()) == []
    assert [command[-3] for command in asked] == ['stock', 'ours']
    assert all(command[-2] == str(TINY) for command in asked)

    assert [(check.name, check.limit, check.at_least) for check in report.checks] == [
        ('small, sleep: lost, x stock', measure.MAX_LOST['sleep'], False),
        ('small, matmul 1: lost, x stock', measure.MAX_LOST['matmul 1'], False),
        ('small: peak extra memory, x state', measure.MAX_MEMORY, False),
        ('small, own processes: lost, x stock', measure.MAX_LOST['matmul 2'], False),
    ]
    assert report.checks[3].value == 0.25
    assert report.checks[2].value == pytest.approx(1.2)
    report.write(str(tmp_path / 'checkpoint.json'))
    found = json.loads((tmp_path / 'checkpoint.json').read_text())['arms']
    for name in plan.arms:
        for step in plan.shapes:
            figures = found[f'small, {step}, {name}']
            for part in ('lost', 'hook', 'fence', 'interference', 'step'):
                assert figures[part]['n'] == 2
            parts = [figures[part]['median_ms'] for part in ('hook', 'fence', 'interference')]
            assert figures['lost']['median_ms'] == pytest.approx(sum(parts))
            assert len(figures['iterations']) == 2
    assert found['small, sleep, stock']['to_stock']['median'] == 1
    assert found['own processes, save by stock']['lost']['median_ms'] == 2000
    ratios = [found[f'small, {step}, ours']['to_stock']['median'] for step in plan.shapes]
    assert ratios == [check.value for check in report.checks[:2]]
    assert found['small, sleep, ours, first save']['hook_ms'] > 0
    # Three rounds of the first shape, one of them warm-up, and two of the other.
    assert found['small, memcpy']['n'] == found['small, raw write + fsync']['n'] == 5
    assert found['small, peak memory, stock']['times_state'] == pytest.approx(1.1)
    text = '\n'.join(report.notes)
    assert 'the first save of a run, sleep: lost ours' in text


def test_memory_is_left_out_where_it_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, 'peak_of', lambda command: None)
    report = measure.Report('checkpoint')
    measure._measure_memory(report, '100 MB', 'nowhere')
    assert report.arms == {}
    assert report.checks == []
    assert 'not measured here' in report.notes[0]
