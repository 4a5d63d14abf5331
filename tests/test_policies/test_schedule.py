"""Rescaled schedules keep their shape in samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS

from mmtempo.policies.editor import Editor
from mmtempo.policies.schedule import Rescaling, rescale_schedulers, warm_up_of


def rescaled(schedulers: Any, ratio: float, last: int) -> Any:
    """Return schedulers for `ratio` new iterations per old one, of a training of `last`."""
    cfg = Config(dict(param_scheduler=schedulers))
    by = Rescaling(ratio, warm_up_of(schedulers, last))
    rescale_schedulers(Editor(cfg), by, 'why')
    return cfg.to_dict()['param_scheduler']


def curve(schedulers: list[dict], iterations: int) -> list[float]:
    """Return the learning rates of mmengine's schedulers."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    built = [PARAM_SCHEDULERS.build(dict(one, optimizer=optimizer)) for one in schedulers]
    rates = []
    for _ in range(iterations):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in built:
            scheduler.step()
    return rates


POLY = dict(type='PolyLR', power=0.9, eta_min=0.01, begin=0, end=400, by_epoch=False)
MULTI = dict(type='MultiStepLR', milestones=[200, 300], gamma=0.1, by_epoch=False)
STEP = dict(type='StepLR', step_size=100, gamma=0.5, by_epoch=False)
COSINE = dict(type='CosineAnnealingLR', T_max=400, by_epoch=False)
WARM = dict(type='LinearLR', start_factor=0.1, begin=0, end=40, by_epoch=False)


@pytest.mark.parametrize('scheduler', [POLY, MULTI, STEP, COSINE], ids=lambda one: one['type'])
@pytest.mark.parametrize('ratio', [0.5, 2.0])
def test_learning_rate_at_a_sample_is_unchanged(scheduler: dict, ratio: float) -> None:
    old = curve([scheduler], 400)
    new = curve(rescaled([scheduler], ratio, 400), round(400 * ratio))
    step = 0.012 if ratio > 1 else 0.01  # change of the rate within an iteration
    for iteration in range(0, len(new), 10):
        assert new[iteration] == pytest.approx(old[int(iteration / ratio)], abs=step)


@pytest.mark.parametrize('ratio', [0.5, 2.0])
def test_warm_up_keeps_its_iterations(ratio: float) -> None:
    after_it = dict(POLY, begin=40)
    last = round(400 * ratio)
    found = rescaled([WARM, after_it], ratio, 400)
    assert [(one['begin'], one['end']) for one in found] == [(0, 40), (40, last)]
    assert curve(found, last)[:40] == pytest.approx(curve([WARM, after_it], 400)[:40])


def test_schedules_by_epoch_are_unchanged() -> None:
    by_epoch = [dict(type='MultiStepLR', milestones=[8, 11]), dict(COSINE, by_epoch=True)]
    assert rescaled(by_epoch, 0.5, 400) == by_epoch


def test_single_schedulers_and_several_optimizers_are_rescaled() -> None:
    assert rescaled(POLY, 0.5, 400)['end'] == 200
    found = rescaled(dict(g=[POLY], d=dict(POLY, end=100)), 0.5, 400)
    assert (found['g'][0]['end'], found['d']['end']) == (200, 50)


def test_schedule_as_long_as_the_training_is_no_warm_up() -> None:
    constant = dict(type='ConstantLR', factor=1.0, by_epoch=False, begin=0, end=400)
    assert warm_up_of([constant], 400) == 0
    assert warm_up_of([dict(constant, begin=10, end=50)], 400) == 0
    assert warm_up_of([WARM, POLY], 400) == 40
    assert warm_up_of([dict(WARM, by_epoch=True)], 400) == 0


def test_training_covers_all_samples() -> None:
    by = Rescaling(4 / 6)
    assert by.end(200_000) == 133_334
    assert by.end(200_000) * 6 >= 200_000 * 4
    assert Rescaling(0.01, warm_up=40).end(400) == 41  # never within the warm-up


def test_periods_of_restarts_are_rescaled() -> None:
    scheduler = dict(
        type='CosineRestartLR', periods=[100, 300], restart_weights=[1, 0.5], by_epoch=False
    )
    assert rescaled([scheduler], 0.5, 400)[0]['periods'] == [50, 150]
