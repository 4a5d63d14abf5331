"""The splat benchmark measures all formulations and checks the bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mmtempo.benchmarks.harness import Report
from mmtempo.benchmarks.splat import measure as benchmark
from mmtempo.benchmarks.splat.measure import Workload, exact, make_inputs, step

GRID = dict(x=(-4.0, 4.0, 1.0), z=(-4.0, 4.0, 1.0))
SMALL = (('stride', 8), ('depth', (1.0, 5.0, 1.0)), ('grid', GRID))
ONE = Workload('small', 'mono', 2, 1, (16, 24), SMALL)
SIX = Workload('small', 'six', 2, 6, (16, 24), SMALL)


def test_calibrations_differ_by_sample_and_seed() -> None:
    matrices = [
        matrix.tobytes()
        for workload in (ONE, SIX)
        for seed in range(3)
        for matrix in workload.pix2bev(seed)
    ]
    assert len(set(matrices)) == 12
    np.testing.assert_array_equal(SIX.pix2bev(1), SIX.pix2bev(1))
    assert SIX.view().prepare(SIX.pix2bev(0), SIX.image_size).formulation == 'bag'
    assert ONE.view().prepare(ONE.pix2bev(0), ONE.image_size).formulation == 'column'


@pytest.mark.parametrize('workload', [ONE, SIX])
def test_float64_result_is_the_same_sum(workload: Workload) -> None:
    geometry = workload.view('bag').prepare(workload.pix2bev(0), workload.image_size)
    inputs = make_inputs(geometry, torch.float32)
    for ours, expected in zip(step(inputs, geometry), exact(inputs, geometry)):
        torch.testing.assert_close(ours.double(), expected, atol=1e-4, rtol=1e-4)
    assert exact(inputs, geometry)[0].abs().sum() > 1


@pytest.mark.parametrize('workload', [ONE, SIX])
def test_all_formulations_are_measured(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, 'MIN_SPEEDUP', dict(mono=1e9, six=0.0))
    report = Report('splat')
    benchmark._measure(report, 'small', workload, torch.float32, rounds=2)
    benchmark._own_calibrations(report, 'small', workload, rounds=2)
    benchmark._count_synchronizations(report, 'small', workload)
    formulations = ['column', 'bag', 'cumsum'] if workload is ONE else ['bag', 'cumsum']
    for name in formulations:
        figures = report.arms[f'small, float32, {name}']
        assert figures['n'] == 2
        assert figures['bytes'] > 0
        assert max(figures['relative_error']) < 1e-5
        assert f'small, own calibrations, {name}, both' in report.arms
    found = {check.name: check for check in report.checks}
    assert found['small: times faster'].ok == (workload is SIX)
    waits = next(check for name, check in found.items() if 'host waits' in name)
    assert waits.ok
    assert len(report.arms['small, waits, cumsum']['waits']) >= 3
    report.write(str(tmp_path / 'splat.json'))  # all values can be serialized


def test_calibration_from_the_cache_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    same = ONE.pix2bev(0)
    monkeypatch.setattr(Workload, 'pix2bev', lambda self, seed: same)
    with pytest.raises(RuntimeError, match='expected no hits, found'):
        benchmark._own_calibrations(Report('splat'), 'small', ONE, rounds=2)
