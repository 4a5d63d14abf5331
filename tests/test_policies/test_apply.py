"""A policy changes a config, keeps what --cfg-options sets, and reports what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from mmengine.config import Config

import mmtempo  # noqa: F401
from mmtempo.policies import POLICIES, apply_policy, load_policy
from mmtempo.policies.drop_in import describe
from tests.testing.mmseg_configs import PSPNET, SWIN, load
from tests.testing.resolved import CONFIG, FOLDER, resolve

LR = 'optim_wrapper.optimizer.lr'


def follow(cfg: Config, policy: str, **options: Any) -> dict[str, str]:
    """Apply a policy; return the changes as text by key. Options have `__` in place of dots."""
    options = {key.replace('__', '.'): value for key, value in options.items()}
    changes = apply_policy(cfg, load_policy(policy, options), options)
    cfg.merge_from_dict({k: v for k, v in options.items() if not k.startswith('tempo')})
    return {change.key: str(change) for change in changes}


def bev() -> Config:
    return Config.fromfile(str(CONFIG))


@pytest.mark.parametrize('policy', POLICIES)
def test_resolved_config_is_frozen(policy: str) -> None:
    """After an intended change run `python -m tests.testing.resolved` and review the diff."""
    assert resolve(policy) == (FOLDER / f'{policy}.json').read_text()


@pytest.mark.parametrize(
    ('policy', 'batch', 'counts', 'lr', 'iterations'),
    [
        ('baseline', 4, 1, 2e-4, 200_000),
        ('balanced', 6, 1, 3e-4, 133_334),
        ('speed_first', 4, 1, 2e-4, 200_000),
        ('memory_first', 8, 1, 4e-4, 100_000),
        ('grad_accum', 4, 2, 4e-4, 100_000),
    ],
)
def test_learning_rate_and_schedule_follow_the_batch(
    policy: str, batch: int, counts: int, lr: float, iterations: int
) -> None:
    cfg = bev()
    follow(cfg, policy)
    assert cfg.train_dataloader.batch_size == batch
    assert cfg.optim_wrapper.get('accumulative_counts', 1) == counts
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(lr)
    assert cfg.train_cfg.max_iters == iterations
    warm, poly = cfg.param_scheduler
    assert (warm.end, poly.begin) == (1500, 1500)
    assert abs(poly.end - iterations) <= 1
    ratio = iterations / 200_000
    assert cfg.default_hooks.checkpoint.interval == round(5000 * ratio)
    every = 1 if policy == 'baseline' else 2
    assert cfg.train_cfg.val_interval == pytest.approx(20_000 * ratio * every, abs=1)


@pytest.mark.parametrize(('rule', 'lr'), [('sqrt', 2e-4 * 1.5**0.5), ('keep', 2e-4)])
def test_other_rules_scale_the_learning_rate(rule: str, lr: float) -> None:
    cfg = bev()
    changes = follow(cfg, 'balanced', tempo__lr=rule)
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(lr)
    assert rule in changes[LR]


def test_length_in_iterations_is_kept() -> None:
    cfg = bev()
    changes = follow(cfg, 'balanced', tempo__length='iterations')
    assert (cfg.train_cfg.max_iters, cfg.param_scheduler[1].end) == (200_000, 200_000)
    assert cfg.train_cfg.val_interval == 40_000
    assert 'tempo.length=iterations' in changes['train_cfg.max_iters']


def test_options_take_precedence_and_are_scaled_from() -> None:
    cfg = bev()
    changes = follow(cfg, 'balanced', train_dataloader__batch_size=16)
    assert cfg.train_dataloader.batch_size == 16
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(8e-4)
    assert cfg.train_cfg.max_iters == 50_000
    assert 'because --cfg-options sets it' in changes['train_dataloader.batch_size']
    cfg = bev()
    follow(cfg, 'balanced', optim_wrapper__optimizer__lr=1e-3, train_cfg__max_iters=10)
    assert (cfg.optim_wrapper.optimizer.lr, cfg.train_cfg.max_iters) == (1e-3, 10)
    cfg = bev()
    follow(cfg, 'balanced', optim_wrapper__type='SparseOptimWrapper')
    assert cfg.optim_wrapper.type == 'SparseOptimWrapper'


@pytest.mark.parametrize('policy', POLICIES)
def test_learning_rate_is_not_scaled_twice(policy: str) -> None:
    """--auto-scale-lr on one device leaves the rate of the policy as it is."""
    cfg = bev()
    follow(cfg, policy)
    counts = cfg.optim_wrapper.get('accumulative_counts', 1)
    assert cfg.auto_scale_lr.base_batch_size == cfg.train_dataloader.batch_size * counts
    with pytest.raises(ValueError, match=f"already follows the policy '{policy}'"):
        follow(cfg, 'balanced')


def test_stock_config_follows_a_policy() -> None:
    cfg = load(PSPNET)
    changes = follow(cfg, 'balanced')
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.train_cfg.type == 'PrefetchIterBasedTrainLoop'
    assert cfg.train_cfg.max_iters == 53_334
    assert cfg.param_scheduler[0].end == 53_333
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    assert (cfg.optim_wrapper.loss_scale, cfg.optim_wrapper.optimizer.fused) == ('dynamic', True)
    assert cfg.default_hooks.checkpoint.max_keep_ckpts == 3
    assert cfg.val_evaluator.type == 'StreamingIoUMetric'
    assert cfg.custom_hooks == [dict(type='ModelTuningHook', tf32=True)]
    assert cfg.tempo.policy == 'balanced'
    assert changes[LR] == f'{LR}: 0.01 -> 0.015; 2 -> 3 samples per update, linear'
    assert 'changed:' in describe(apply_policy(load(PSPNET), load_policy('balanced')))


def test_without_a_batch_nothing_is_scaled() -> None:
    cfg = load(PSPNET)
    cfg.train_dataloader.pop('batch_size')
    cfg.train_dataloader.batch_sampler = dict(type='BatchSampler', batch_size=2, drop_last=True)
    changes = follow(cfg, 'balanced')
    assert 'is chosen by batch_sampler' in changes['train_dataloader.batch_size']
    assert (cfg.optim_wrapper.optimizer.lr, cfg.train_cfg.max_iters) == (0.01, 80_000)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'


def test_accumulation_of_the_config_is_kept() -> None:
    cfg = load(PSPNET)
    cfg.optim_wrapper.accumulative_counts = 4
    changes = follow(cfg, 'grad_accum')
    assert 'already accumulates' in changes['optim_wrapper.accumulative_counts']
    assert cfg.optim_wrapper.accumulative_counts == 4
    assert 'count' not in cfg.train_cfg
    assert cfg.optim_wrapper.optimizer.lr == 0.01
    cfg = load(PSPNET)
    cfg.optim_wrapper.accumulative_counts = 4
    changes = follow(cfg, 'balanced')
    assert '8 -> 12 samples per update' in changes[LR]
    assert cfg.train_cfg.max_iters == 53_334


def test_wrapper_of_another_package_is_left_alone() -> None:
    cfg = load(PSPNET)
    cfg.optim_wrapper.type = 'ApexOptimWrapper'
    changes = follow(cfg, 'grad_accum')
    assert 'precision is left alone' in changes['optim_wrapper']
    assert 'accumulative_counts' not in cfg.optim_wrapper
    assert cfg.optim_wrapper.optimizer.lr == 0.01


def test_mixed_precision_of_the_config_is_kept() -> None:
    cfg = load(PSPNET)
    cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale=512.0)
    changes = follow(cfg, 'balanced')
    assert 'already has mixed precision' in changes['optim_wrapper.type']
    assert (cfg.optim_wrapper.type, cfg.optim_wrapper.loss_scale) == ('SparseAmpOptimWrapper', 512)


def test_schedules_by_epoch_are_unchanged() -> None:
    cfg = load(PSPNET)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=3)
    cfg.param_scheduler = [dict(type='MultiStepLR', milestones=[8, 11], by_epoch=True)]
    cfg.default_hooks.checkpoint.update(by_epoch=True, interval=1)
    follow(cfg, 'memory_first')
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (12, 6)
    assert cfg.param_scheduler[0].milestones == [8, 11]
    assert cfg.default_hooks.checkpoint.interval == 1
    assert cfg.optim_wrapper.optimizer.lr == 0.02


def test_stock_loop_keeps_its_workers() -> None:
    cfg = load(PSPNET)
    cfg.train_cfg = dict(by_epoch=True, max_epochs=12)
    changes = follow(cfg, 'grad_accum')
    assert 'an iteration stays a batch' in changes['train_cfg']
    assert 'train_cfg is not a loop of mmtempo' in changes['train_dataloader.num_workers']
    assert cfg.train_dataloader.num_workers == 2
    assert cfg.optim_wrapper.accumulative_counts == 2


def test_custom_hooks_of_the_config_are_kept() -> None:
    cfg = load(f'mmseg::swin/{SWIN}')
    cfg.custom_hooks = [dict(type='EMAHook'), dict(type='ProfilerHook', interval=10)]
    changes = follow(cfg, 'memory_first')
    assert [hook['type'] for hook in cfg.custom_hooks] == [
        'EMAHook', 'ProfilerHook', 'ModelTuningHook',
    ]  # fmt: skip
    assert 'is left to its hook, with' in changes['custom_hooks.1.interval']
    cfg = load(PSPNET)
    cfg.custom_hooks = [dict(type='ModelTuningHook', channels_last=True)]
    assert 'already has a ModelTuningHook' in follow(cfg, 'memory_first')['custom_hooks']
    assert len(cfg.custom_hooks) == 1


def test_iou_metric_in_a_list_is_replaced() -> None:
    cfg = load(PSPNET)
    cfg.val_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU']), dict(type='DumpResults')]
    follow(cfg, 'balanced')
    assert [metric['type'] for metric in cfg.val_evaluator] == ['StreamingIoUMetric', 'DumpResults']


def test_options_of_workers_are_not_set_without_workers() -> None:
    cfg = load(PSPNET)
    cfg.train_dataloader.persistent_workers = False
    changes = follow(cfg, 'balanced', train_dataloader__num_workers=0)
    assert cfg.train_dataloader.persistent_workers is False
    assert 'prefetch_factor' not in cfg.train_dataloader
    assert 'has no effect without workers' in changes['train_dataloader.persistent_workers']


def test_batch_of_one_sample_cannot_grow_by_half() -> None:
    cfg = load(PSPNET)
    cfg.train_dataloader.batch_size = 1
    changes = follow(cfg, 'balanced')
    assert cfg.train_dataloader.batch_size == 1
    assert (
        '1.5 x the batch of the config, rounded down, is the same'
        in changes['train_dataloader.batch_size']
    )
