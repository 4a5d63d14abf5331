"""Compare files, their content, hook and hub with those of `CheckpointHook`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from tests.testing.checkpoints import (
    KINDS,
    assert_same_files,
    differences,
    hook_of,
    left_by,
    load,
    quick_text,
    run,
    run_config,
)
from tests.testing.toy import SPARSE, weights

__all__ = ['quick_text']
BEST = dict(interval=2, save_best='acc')


def assert_same_state(stock: Runner, ours: Runner, roots: tuple[Path, Path]) -> None:
    """Assert that hook and hub name the same files at the end."""
    names = (
        'last_ckpt',
        'keep_ckpt_ids',
        'best_ckpt_path',
        'best_ckpt_path_dict',
        'key_indicators',
    )
    known = [{name: getattr(hook_of(one), name, None) for name in names} for one in (stock, ours)]
    assert not differences(*map(_strings, known), roots)
    infos = [one.message_hub.runtime_info for one in (stock, ours)]
    own = [
        {k: v for k, v in info.items() if k.startswith(('last_', 'best_', 'keep_'))}
        for info in infos
    ]
    assert not differences(*map(_strings, own), roots)


def _strings(known: dict) -> dict:
    return {key: repr(value) for key, value in known.items()}


@pytest.mark.usefixtures('quick_text')
@pytest.mark.parametrize(
    ('checkpoint', 'files'),
    [
        (dict(interval=5), ['iter_10.pth', 'iter_12.pth', 'iter_5.pth']),
        (dict(interval=5, save_last=False), ['iter_10.pth', 'iter_5.pth']),
        (dict(interval=-1), ['iter_12.pth']),
        (dict(interval=-1, save_last=False), []),
        (dict(interval=3, save_begin=7), ['iter_10.pth', 'iter_12.pth', 'iter_7.pth']),
        (dict(interval=2, max_keep_ckpts=1), ['iter_12.pth']),
        (dict(interval=2, max_keep_ckpts=3), ['iter_10.pth', 'iter_12.pth', 'iter_8.pth']),
        (dict(interval=4, filename_tmpl='at_{}.pth'), ['at_12.pth', 'at_4.pth', 'at_8.pth']),
        (dict(interval=6, out_dir='out'), ['iter_12.pth', 'iter_6.pth']),
        (dict(interval=6, save_optimizer=False), None),
        (dict(interval=6, save_param_scheduler=False), None),
        (dict(interval=6, save_optimizer=False, save_param_scheduler=False), None),
        (dict(interval=6, backend_args=dict(backend='local')), None),
        (dict(interval=6, published_keys=['meta', 'state_dict']), None),
        (dict(BEST), None),
        (dict(BEST, rule='less', max_keep_ckpts=1), None),
        (dict(BEST, interval=6, max_keep_ckpts=2, out_dir='out'), None),
        (dict(BEST, save_best='val_loss', published_keys='state_dict'), None),
        (dict(BEST, save_best='auto', max_keep_ckpts=2), None),
        (dict(BEST, save_best=['acc', 'val_loss'], max_keep_ckpts=2), None),
        (
            dict(BEST, save_best=['part/acc', 'val_loss'], rule=['less', 'greater']),
            None,
        ),
        (dict(BEST, save_best=['acc', 'val_loss'], published_keys=['state_dict']), None),
        (dict(BEST, interval=-1, save_last=False), ['best_acc_iter_12.pth']),
        (dict(by_epoch=True, interval=2), ['epoch_2.pth', 'epoch_4.pth']),
        (dict(by_epoch=True, interval=3), ['epoch_3.pth', 'epoch_4.pth']),
        (dict(by_epoch=True, interval=3, save_last=False, save_begin=2), ['epoch_2.pth']),
        (dict(by_epoch=True, interval=1, max_keep_ckpts=2), ['epoch_3.pth', 'epoch_4.pth']),
        (dict(by_epoch=True, interval=1, max_keep_ckpts=1, save_best='acc'), None),
        (dict(by_epoch=True, interval=2, save_best=['val_loss', 'part/acc']), None),
        (dict(by_epoch=True, interval=4, published_keys=['state_dict'], out_dir='o'), None),
    ],
    ids=repr,
)
def test_files_and_state(checkpoint: dict, files: list | None, tmp_path: Path) -> None:
    roots = (tmp_path / 'stock', tmp_path / 'ours')
    stock, ours = (run(kind, root, **checkpoint) for kind, root in zip(KINDS, roots))
    assert_same_files(*roots)
    assert_same_state(stock, ours, roots)
    if files is not None:
        folder = 'out/work/' if 'out_dir' in checkpoint else 'work/'
        expected = [folder + name for name in files]
        assert [name for name in left_by(roots[1]) if name.endswith('.pth')] == sorted(expected)


def plain(cfg: Config) -> None:
    pass


def averages(**options: Any) -> Callable:
    def change(cfg: Config) -> None:
        cfg.custom_hooks = [dict(type='EMAHook', **options)]

    return change


def two_optimizers(cfg: Config) -> None:
    cfg.model.type = 'TwoOptimizers'
    cfg.optim_wrapper = dict(constructor='Halves')
    cfg.param_scheduler = dict(
        first=[dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=9)],
        rest=dict(type='PolyLR', power=0.9, by_epoch=False, end=12),
    )


def accumulation(cfg: Config) -> None:
    cfg.optim_wrapper.update(accumulative_counts=3)


def mixed_precision(cfg: Config) -> None:
    scale = dict(init_scale=2.0**24, growth_interval=2)
    cfg.optim_wrapper.update(type='AmpOnCPU', dtype='float16', loss_scale=scale)


def sparse(cfg: Config) -> None:
    for hook, kind in SPARSE.items():
        cfg.default_hooks[hook].type = kind
    cfg.default_hooks.runtime_info.history_length = 5


def odd_tensors(cfg: Config) -> None:
    cfg.model.type = 'Odd'
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=0.01, amsgrad=True)
    averages(momentum=0.3, update_buffers=True)(cfg)


def schedulers(cfg: Config) -> None:
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=5),
        dict(type='CosineAnnealingLR', T_max=7, by_epoch=False, begin=5, end=12),
        dict(type='CosineAnnealingMomentum', T_max=12, by_epoch=False),
    ]


def described(cfg: Config) -> None:
    cfg.train_dataloader.dataset.type = 'Described'


def additions(cfg: Config) -> None:
    cfg.custom_hooks = [dict(type='Adds')]


@pytest.mark.parametrize(
    'change',
    [
        plain,
        averages(momentum=0.3),
        averages(momentum=0.3, update_buffers=True),
        averages(momentum=0.3, begin_iter=7, interval=2),
        averages(ema_type='StochasticWeightAverage'),
        two_optimizers,
        accumulation,
        mixed_precision,
        sparse,
        odd_tensors,
        schedulers,
        described,
        additions,
    ],
)
def test_content_of_checkpoints(
    change: Callable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if change is not plain:
        request.getfixturevalue('quick_text')
    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        run(kind, root, change, interval=5, save_best='acc')
    assert left_by(roots[1]) == [
        'work/best_acc_iter_12.pth',
        *(f'work/iter_{i}.pth' for i in (10, 12, 5, 6)),  # 6: stock saves with each new best
        'work/last_checkpoint',
    ]
    assert_same_files(*roots)


def everything(cfg: Config) -> None:
    averages(momentum=0.3)(cfg)
    schedulers(cfg)
    mixed_precision(cfg)
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=0.01)


@pytest.mark.usefixtures('quick_text')
@pytest.mark.parametrize('kinds', [KINDS, KINDS[::-1], KINDS[1:] * 2], ids=' then '.join)
def test_resume_from_a_checkpoint_of_the_other_hook(kinds: tuple, tmp_path: Path) -> None:
    whole = run(KINDS[0], tmp_path / 'whole', everything, interval=6)
    run(kinds[0], tmp_path / 'first', everything, interval=6, save_best='acc')
    cfg = run_config(kinds[1], tmp_path / 'then', everything, interval=6, save_best='acc')
    cfg.resume, cfg.load_from = True, str(tmp_path / 'first/work/iter_6.pth')
    resumed = Runner.from_cfg(cfg)
    resumed.train()
    assert resumed.iter == 12
    expected = weights(whole)
    for key, value in weights(resumed).items():
        assert torch.equal(value, expected[key]), key
    last = [root / 'work/iter_12.pth' for root in (tmp_path / 'whole', tmp_path / 'then')]
    roots = (tmp_path / 'whole', tmp_path / 'then')
    states = [
        {key: state[key] for key in ('ema_state_dict', 'optimizer', 'param_schedulers')}
        for state in map(load, last)
    ]
    assert not differences(*states, roots)
