"""Loops that differ from stock by type alone call the same hooks and give the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from tests.testing.noisy import SPARSE
from tests.testing.toy import ToyDataset, by_epoch, config, train, weights, with_evaluation


@HOOKS.register_module()
class Calls(Hook):
    """Records the calls of a hook, with index and size of the batch."""

    def before_run(self, runner: Any) -> None:
        self.calls: list[tuple] = []

    def _before_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, mode='') -> None:
        self.calls.append((mode, 'before', runner.iter, batch_idx, len(data_batch['inputs'])))

    def _after_iter(self, runner: Any, batch_idx: int, *args: Any, mode='', **kwargs: Any) -> None:
        self.calls.append((mode, 'after', runner.iter, batch_idx))

    def _before_epoch(self, runner: Any, mode: str = '') -> None:
        self.calls.append((mode, 'epoch', runner.epoch))

    def _after_epoch(self, runner: Any, mode: str = '') -> None:
        self.calls.append((mode, 'end', runner.epoch))


def iterations(work: Path) -> Config:
    """Train one epoch: later ones have another order than in stock."""
    cfg = with_evaluation(config(work, SPARSE))
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=20, val_interval=8, val_begin=5)
    return cfg


def epochs(work: Path) -> Config:
    cfg = with_evaluation(by_epoch(config(work, SPARSE), 3))
    cfg.train_cfg.update(val_interval=2)
    cfg.train_dataloader.update(batch_size=6)
    return cfg


def and_test(cfg: Config) -> Config:
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.test_cfg = dict(type='TestLoop')
    cfg.custom_hooks = [dict(type='Calls')]
    return cfg


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('kind', [iterations, epochs])
def test_calls_metrics_and_weights_equal_those_of_stock(
    kind: Any, workers: int, tmp_path: Path
) -> None:
    found = []
    for name in ('stock', 'ours'):
        cfg = and_test(kind(tmp_path / name))
        for split in ('train', 'val', 'test'):
            if name == 'ours':
                cfg[f'{split}_cfg']['type'] = f'Prefetch{cfg[f"{split}_cfg"]["type"]}'
                cfg[f'{split}_dataloader']['num_workers'] = workers
        runner = train(cfg)
        metrics = runner.test()
        (calls,) = (hook.calls for hook in runner.hooks if isinstance(hook, Calls))
        found.append((calls, metrics, weights(runner), runner))
    stock, ours = found
    assert ours[0] == stock[0]
    assert ours[1] == stock[1]
    for key, value in stock[2].items():
        assert torch.equal(value, ours[2][key]), key
    for name in ('max_iters', 'max_epochs', 'iter', 'epoch'):
        assert getattr(ours[3], name) == getattr(stock[3], name)
    assert len(ours[3].train_dataloader) == len(stock[3].train_dataloader)


@pytest.mark.parametrize('kind', [iterations, epochs])
def test_built_loader_is_used_as_in_stock(kind: Any, tmp_path: Path) -> None:
    found = []
    for name in ('', 'Prefetch'):
        cfg = kind(tmp_path / f'run{name}')
        cfg.train_cfg.type = f'{name}{cfg.train_cfg.type}'
        runner = Runner.from_cfg(cfg)
        runner._train_dataloader = DataLoader(
            ToyDataset(), batch_size=4, collate_fn=lambda samples: dict(
                inputs=[sample['inputs'] for sample in samples]
            ),
        )  # fmt: skip
        runner.train()
        found.append(weights(runner))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())
