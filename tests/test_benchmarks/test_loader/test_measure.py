"""Arms, ratios, checks and JSON keys of the loader benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmtempo.benchmarks.loader import measure
from mmtempo.benchmarks.loader.arms import (
    ARMS,
    FILLING,
    ROUNDED,
    STOCK,
    UNCACHED,
    WARM,
    Source,
)
from mmtempo.benchmarks.loader.measure import Plan, measure_loader
from mmtempo.benchmarks.loader.pictures import write_pictures
from mmtempo.benchmarks.loader.rounds import Window

# Seconds and CPU seconds of a sample of each arm.
COSTS = {
    STOCK: (0.04, 0.03),
    FILLING: (0.02, 0.024),
    UNCACHED: (0.02, 0.021),
    WARM: (0.005, 0.003),
    ROUNDED: (0.04 / 9, 0.002),
}


@pytest.mark.parametrize('plan', [measure.QUICK, measure.FULL])
def test_round_stays_within_the_first_epoch(plan: Plan) -> None:
    assert 4 * (plan.lead + plan.count[0] + max(plan.workers)) <= plan.pictures
    assert [plan.count_of(name) for name in (STOCK, FILLING, WARM)] == [
        *plan.count[:1] * 2,
        plan.count[1],
    ]


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, str, int, int, int]] = []

    def run(source: Source, workers: int, lead: int, count: int) -> Window:
        (name,) = (name for name, arm in ARMS.items() if arm is source.arm)
        first = len(ran) < 2 * len(ARMS)
        ran.append((source._suffix, name, workers, lead, count))
        return Window(9.0, 9.0) if first else Window(*COSTS[name])

    called: list[Any] = []
    monkeypatch.setattr(measure, 'QUICK', Plan(4, [2], 2, 3, (5, 7), [1, 8], 1000))
    monkeypatch.setattr(measure, 'run_round', run)
    monkeypatch.setattr(measure, 'time_start', lambda source, workers: 0.25)
    monkeypatch.setattr(measure, 'write_pictures', small_pictures(called))
    monkeypatch.setattr(measure, 'check_same_pixels', lambda root, suffix, _: called.append(suffix))
    monkeypatch.setattr(measure, 'measure_memory', lambda report, *args: called.append(args))
    monkeypatch.setattr(measure, 'measure_pk_sampler', lambda report, quick: called.append(quick))
    monkeypatch.setattr(measure, 'measure_side_effects', lambda report, *args: called.append(args))
    report = measure_loader(quick=True)
    side_effects = (['nothing', 'loader'], ['loader'], True)
    assert called == [4, 'jpg', 'png', (1000, [1, 8]), True, side_effects]
    assert len(ran) == 3 * 2 * len(ARMS)
    assert {each[3:] for each in ran if each[1] not in (WARM, ROUNDED)} == {(3, 5)}
    assert {each[3:] for each in ran if each[1] in (WARM, ROUNDED)} == {(3, 7)}

    found = {check.name: (check.value, check.limit, check.at_least) for check in report.checks}
    for (suffix, arm), least in measure.MIN_WARM.items():
        title = f'{suffix}, 2 workers,'
        speed = found.pop(f'{title} {arm}: samples/s, x stock')
        assert speed == (pytest.approx(COSTS[STOCK][0] / COSTS[arm][0]), least, True)
        for name, share in ((FILLING, 0.8), (UNCACHED, 0.7)):
            value, limit, at_least = found.pop(f'{title} {name}: CPU a sample, x stock')
            assert (value, limit, at_least) == (pytest.approx(share), measure.MAX_COLD_CPU, False)
    assert [(limit, at_least) for _, limit, at_least in found.values()] == [
        (measure.MAX_BEV_BYTES, False),
        (measure.MAX_BEV_SEGMENTS, False),
    ]
    assert not report.ok  # 9 times as fast, with a bar of 10
    report.write(str(tmp_path / 'loader.json'))
    arms = json.loads((tmp_path / 'loader.json').read_text())['arms']
    assert arms[f'png, 2 workers, {WARM}']['samples_per_second']['median'] == pytest.approx(200)
    assert arms[f'png, 2 workers, {WARM}']['cpu']['n'] == 2
    assert arms[f'start-up, {STOCK}']['median_ms'] == pytest.approx(250)
    assert arms['BEV batch, ours']['segments'] == 2


def test_missing_clocks_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, 'run_round', lambda *args: Window(1.0, None))
    report = measure.Report('loader')
    measure._measure_speed(report, Plan(4, [0], 2, 1, (1, 1), [1]), 'nowhere')
    assert 'CPU of workers: not measured here' in '\n'.join(report.notes)
    # The checks of CPU time are left out.
    assert [check.name for check in report.checks] == [
        f'{suffix}, 0 workers, {arm}: samples/s, x stock' for suffix, arm in measure.MIN_WARM
    ]


def small_pictures(called: list[Any]) -> Callable[[str, int], None]:
    def write(root: str, count: int) -> None:
        called.append(count)
        write_pictures(root, count, (160, 90))

    return write
