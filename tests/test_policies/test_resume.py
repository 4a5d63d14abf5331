"""A training resumes by another policy at the same samples, with the rate of its schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner

from mmtempo.policies import POLICIES, apply_policy, load_policy
from tests.testing.common import next_name
from tests.testing.toy import SPARSE, ToyDataset, config

WHOLE, HALF = 48, 24  # iterations of 4 samples


@DATASETS.register_module()
class NumberedToy(ToyDataset):
    """Data set whose samples contain their index."""

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=self.points[index], data_samples=index)


@HOOKS.register_module()
class SeenByPolicy(Hook):
    """Hook that records learning rates and sample indices by iteration, from 1."""

    rates: dict[int, list[float]] = {}
    samples: dict[int, list[int]] = {}

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        groups = runner.optim_wrapper.optimizer.param_groups
        self.rates[runner.iter + 1] = [group['lr'] for group in groups]
        self.samples[runner.iter + 1] = [int(one) for one in data_batch['data_samples']]


def policy_config(work: Path, policy: str, **options: Any) -> Config:
    cfg = config(work, SPARSE)
    cfg.train_dataloader.update(batch_size=4)
    cfg.train_dataloader.dataset.type = 'NumberedToy'
    cfg.optim_wrapper.optimizer.lr = 0.004
    # Two rates, and a schedule that both adds and multiplies.
    cfg.optim_wrapper.paramwise_cfg = dict(custom_keys={'net.0': dict(lr_mult=0.1)})
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=6),
        dict(type='PolyLR', power=0.9, eta_min=1e-4, by_epoch=False, begin=6, end=WHOLE),
    ]
    cfg.train_cfg.update(type='PrefetchIterBasedTrainLoop', max_iters=WHOLE)
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=HALF)
    cfg.custom_hooks = [dict(type='SeenByPolicy')]
    options = {f'tempo.{key}': value for key, value in options.items()}
    options['train_dataloader.num_workers'] = 0
    apply_policy(cfg, load_policy(policy, options), options)
    cfg.optim_wrapper.type = 'SparseOptimWrapper'  # in float32, so that numbers can be compared
    cfg.optim_wrapper.pop('loss_scale', None)
    return cfg


def run(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[Runner, dict, dict]:
    monkeypatch.setattr(SeenByPolicy, 'rates', {})
    monkeypatch.setattr(SeenByPolicy, 'samples', {})
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner, SeenByPolicy.rates, SeenByPolicy.samples


def resumed(cfg: Config, path: Path) -> Config:
    cfg.load_from, cfg.resume, cfg.experiment_name = str(path), True, next_name()
    return cfg


@pytest.mark.parametrize('policy', POLICIES)
def test_resume_from_baseline_continues_samples_and_schedule(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, plain = run(policy_config(tmp_path / 'old', 'baseline'), monkeypatch)
    _, whole, _ = run(policy_config(tmp_path / 'whole', policy), monkeypatch)
    cfg = resumed(policy_config(tmp_path / 'new', policy), tmp_path / f'old/iter_{HALF}.pth')
    runner, rates, samples = run(cfg, monkeypatch)
    last = cfg.train_cfg.max_iters
    per_iteration = {'balanced': 6, 'memory_first': 8, 'grad_accum': 8}.get(policy, 4)
    first = HALF * 4 // per_iteration
    assert runner.iter == last == WHOLE * 4 // per_iteration
    assert list(rates) == [*range(first + 1, last + 1)]
    for iteration, found in rates.items():
        assert found == pytest.approx(whole[iteration], rel=1e-6)
    fused = [group['fused'] for group in runner.optim_wrapper.optimizer.param_groups]
    assert all(value is (None if policy == 'baseline' else True) for value in fused)
    # The stream continues after the last sample: none is repeated or left out.
    next_samples = [one for batch in list(plain.values())[HALF : HALF + 4] for one in batch]
    batch = cfg.train_dataloader.batch_size
    assert samples[first + 1] == next_samples[:batch]


def test_resume_by_baseline_continues_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = policy_config(tmp_path / 'old', 'memory_first')
    half = cfg.default_hooks.checkpoint.interval
    run(cfg, monkeypatch)
    _, whole, _ = run(policy_config(tmp_path / 'whole', 'baseline'), monkeypatch)
    cfg = resumed(policy_config(tmp_path / 'new', 'baseline'), tmp_path / f'old/iter_{half}.pth')
    runner, rates, _ = run(cfg, monkeypatch)
    assert (runner.iter, min(rates)) == (WHOLE, 2 * half + 1)
    assert rates[WHOLE] == pytest.approx(whole[WHOLE], rel=1e-6)


def test_length_in_iterations_resumes_at_the_same_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(policy_config(tmp_path / 'old', 'baseline'), monkeypatch)
    cfg = policy_config(tmp_path / 'new', 'memory_first', length='iterations')
    _, whole, _ = run(
        policy_config(tmp_path / 'whole', 'memory_first', length='iterations'), monkeypatch
    )
    path = tmp_path / f'old/iter_{HALF}.pth'
    runner, rates, _ = run(resumed(cfg, path), monkeypatch)
    assert (runner.iter, min(rates)) == (WHOLE, HALF + 1)
    assert rates[HALF + 1] == pytest.approx(whole[HALF + 1], rel=1e-6)


def test_resume_without_a_policy_follows_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(policy_config(tmp_path / 'old', 'baseline'), monkeypatch)
    cfg = policy_config(tmp_path / 'new', 'memory_first')
    cfg.pop('tempo')
    cfg.train_cfg.max_iters = WHOLE
    runner, rates, _ = run(resumed(cfg, tmp_path / f'old/iter_{HALF}.pth'), monkeypatch)
    assert (runner.iter, min(rates)) == (WHOLE, HALF + 1)
    saved = torch.load(tmp_path / f'old/iter_{HALF}.pth', weights_only=False)
    assert rates[HALF + 1] == [group['lr'] for group in saved['optimizer']['param_groups']]
