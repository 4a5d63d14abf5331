"""The evaluation loop keeps its workers, and its results equal those of stock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from mmengine.registry import FUNCTIONS, MODELS
from mmengine.structures import BaseDataElement

from tests.testing.evaluated_training import evaluations, of_evaluations, often
from tests.testing.toy import ToyModel, train, weights


@FUNCTIONS.register_module()
def note_start(worker: int, folder: str) -> None:
    """Write the process id of a worker to a file; a `worker_init_fn`."""
    with open(f'{folder}/starts', 'a') as file:
        file.write(f'{os.getpid()}\n')


@pytest.mark.parametrize('subset', [True, False])
def test_workers_persist_between_evaluations(subset: bool, tmp_path: Path) -> None:
    cfg = often(tmp_path, workers=2)
    if not subset:
        cfg.val_cfg = dict(type='PrefetchValLoop')
    cfg.val_dataloader.worker_init_fn = dict(type='note_start', folder=str(tmp_path))
    train(cfg)
    found = evaluations(tmp_path)
    assert len(found) == 8
    pids = found[0]['pids']
    assert len(pids) == 2
    assert all(one['pids'] == pids for one in found)
    assert sorted(map(int, (tmp_path / 'starts').read_text().split())) == pids


@MODELS.register_module()
class WithLoss(ToyModel):
    """A model with losses in its evaluation."""

    def val_step(self, data: dict) -> list:
        outputs = super().val_step(data)
        loss = torch.stack([one['out'] for one in outputs]).mean()
        return [*outputs, BaseDataElement(loss=dict(loss_out=loss, other=loss + 1))]


@pytest.mark.parametrize('model', ['ToyModel', 'WithLoss'])
def test_full_evaluation_equals_that_of_stock(model: str, tmp_path: Path) -> None:
    found = []
    for name, val_cfg in (
        ('stock', dict(type='ValLoop')),
        ('ours', dict(type='PrefetchValLoop')),
        ('each', dict(type='PrefetchValLoop', subset=10, full_interval=1)),
    ):
        cfg = often(tmp_path / name)
        cfg.custom_hooks.pop()
        cfg.default_hooks.checkpoint.save_best = 'mIoU'
        cfg.model.type = model
        cfg.val_cfg = val_cfg
        runner = train(cfg)
        if model == 'WithLoss' and not hasattr(runner.val_loop, 'val_loss'):
            pytest.skip('this mmengine has no loss in evaluations')
        samples = runner.val_evaluator.metrics[0].samples
        found.append((of_evaluations(tmp_path / name), runner.val_loop.run(), samples))
        for key, value in weights(runner).items():
            found[-1] += ((key, value.tolist()),)
    assert found[0] == found[1] == found[2]
    assert ('val_loss' in found[0][1]) == (model == 'WithLoss')
    assert len(found[0][0]) == 8
