"""`FlexibleRunner` with its strategy accepts the loops and loaders."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.runner import FlexibleRunner

from mmtempo.loaders import PrefetchDataLoader
from tests.testing.toy import SPARSE, config, with_evaluation


@pytest.mark.parametrize('wrapper', ['OptimWrapper', 'SparseOptimWrapper'])
def test_flexible_runner_trains_with_the_loops(tmp_path: Path, wrapper: str) -> None:
    cfg = with_evaluation(config(tmp_path, SPARSE))
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=6, val_interval=3)
    cfg.val_cfg = dict(type='PrefetchValLoop')
    cfg.default_hooks.checkpoint = dict(type='AsyncCheckpointHook', by_epoch=False, interval=3)
    cfg.optim_wrapper.type = wrapper
    cfg.strategy, cfg.env_cfg = dict(type='SingleDeviceStrategy'), {}
    runner = FlexibleRunner.from_cfg(cfg)
    runner.train()
    assert runner.iter == 6
    assert isinstance(runner.train_dataloader, PrefetchDataLoader)
    assert sorted(path.name for path in tmp_path.glob('*.pth')) == ['iter_3.pth', 'iter_6.pth']
