"""Scale learning rates during iterations, so that schedules and checkpoints never see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS

from mmtempo.progressive.lr_factor import LRFactor
from tests.testing.progressive import (
    progressive,
    steps,
)
from tests.testing.toy import logged, train, weights

SCHEDULES = dict(
    warm_up=[
        dict(type='LinearLR', start_factor=0.1, begin=0, end=6, by_epoch=False),
        dict(type='PolyLR', eta_min=1e-7, power=0.9, begin=6, end=17, by_epoch=False),
    ],
    milestones=[
        dict(type='LinearLR', start_factor=0.1, begin=0, end=6, by_epoch=False),
        dict(type='MultiStepLR', milestones=[5, 11], by_epoch=False),
    ],
    cosine=[dict(type='CosineAnnealingLR', eta_min=1e-7, T_max=10, end=17, by_epoch=False)],
    one_cycle=[dict(type='OneCycleLR', eta_max=1e-5, total_steps=20, by_epoch=False)],
)


@pytest.mark.parametrize('name', SCHEDULES)
def test_schedules_keep_their_shape(name: str, tmp_path: Path) -> None:
    """Schedules that compute a rate from the last one, from the first one, or to a minimum."""
    plain, staged = tmp_path / 'plain', tmp_path / 'staged'
    options: dict[str, Any] = dict(param_scheduler=SCHEDULES[name])
    stages = [dict(begin=2, lr_scale=0.3), dict(begin=9, lr_scale=3)]
    train(progressive(plain, None, **options))
    runner = train(progressive(staged, stages, **options))
    scheduled = [one['lr'][0] for one in steps(plain)]
    factors = [1.0] * 2 + [0.3] * 7 + [3.0] * 8
    expected = [rate * factor for rate, factor in zip(scheduled, factors)]
    assert [one['lr'][0] for one in steps(staged)] == expected
    assert [line['lr'] for line in logged(staged) if 'lr' in line] == expected
    assert len(set(scheduled)) > 2
    # The checkpoint has the rate of the schedule.
    assert runner.optim_wrapper.get_lr() == saved_rates(plain)


def saved_rates(work: Path) -> dict:
    """Return the learning rates in the last checkpoint."""
    groups = torch.load(work / 'iter_17.pth', weights_only=False)['optimizer']['param_groups']
    return dict(lr=[group['lr'] for group in groups])


def test_update_uses_the_scaled_rate(tmp_path: Path) -> None:
    half = {'optim_wrapper.optimizer.lr': 5e-7}
    by_config = weights(train(progressive(tmp_path / 'config', None, **half)))
    stages = [dict(begin=0, lr_scale=0.5)]
    by_stage = weights(train(progressive(tmp_path / 'stage', stages)))
    for key, value in by_stage.items():
        assert torch.equal(value, by_config[key]), key


@HOOKS.register_module()
class SaveWithin(Hook):
    """Save within an iteration, as a loop does whose loader fails within an update."""

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 4:
            runner.save_checkpoint(runner.work_dir, 'within.pth', by_epoch=False)


@pytest.mark.parametrize('base', [False, True])
def test_checkpoint_within_an_iteration_has_the_rate_of_the_schedule(
    base: bool, tmp_path: Path
) -> None:
    cfg = progressive(tmp_path, [dict(begin=2, lr_scale=0.5)])
    if base:  # several groups: the wrapper logs a base rate that belongs to no group
        cfg.optim_wrapper.constructor = 'DefaultOptimWrapperConstructor'
        cfg.optim_wrapper.paramwise_cfg = dict(bias_lr_mult=2.0)
    cfg.custom_hooks.append(dict(type='SaveWithin'))
    runner = train(cfg)
    state = torch.load(tmp_path / 'within.pth', weights_only=False)['optimizer']
    within = [group['lr'] for group in state['param_groups']]
    assert within == [group['lr'] for group in runner.optim_wrapper.optimizer.param_groups]
    if base:
        assert state['base_param_settings']['lr'] == 1e-6
        lines = [line['base_lr'] for line in logged(tmp_path) if 'base_lr' in line]
        assert lines == [1e-6] * 2 + [0.5e-6] * 15
    assert steps(tmp_path)[4]['lr'][0] == within[0] / 2


def wrapper(lr: float) -> OptimWrapper:
    return OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr))


def rates(wrappers: OptimWrapperDict) -> list[float]:
    return [group['lr'] for one in wrappers.values() for group in one.param_groups]


def test_factor_of_several_optimizers() -> None:
    wrappers = OptimWrapperDict(first=wrapper(1.0), rest=wrapper(0.5))
    rate = LRFactor()
    rate.begin(wrappers)
    assert rates(wrappers) == [1.0, 0.5]
    rate.end(wrappers)
    rate.factor = 0.5
    rate.begin(wrappers)
    assert rates(wrappers) == [0.5, 0.25]
    state = wrappers.state_dict()
    rate.restore(wrappers, state)
    saved = [group['lr'] for part in state.values() for group in part['param_groups']]
    assert saved == [1.0, 0.5]
    assert rates(wrappers) == [0.5, 0.25]
    rate.end(wrappers)
    assert rates(wrappers) == [1.0, 0.5]
    rate.end(wrappers)
    assert rates(wrappers) == [1.0, 0.5]
