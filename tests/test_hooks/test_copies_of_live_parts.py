"""Copy and pickle parts of a running training, as hooks of users may do."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from tests.testing.toy import SPARSE, STOCK, config, train

PARTS = {
    'hub': lambda runner: runner.message_hub,
    'wrapper': lambda runner: runner.optim_wrapper,
    'schedulers': lambda runner: runner.param_schedulers,
}


@HOOKS.register_module()
class CopiesParts(Hook):
    """Copy each part within a window of the log, and record what fails."""

    priority = 'VERY_LOW'

    def before_run(self, runner: Any) -> None:
        self.failed: set[tuple[str, str]] = set()
        self.histories: list[list[float]] = []

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter not in (3, 12):
            return
        for name, part in PARTS.items():
            for way in (copy.deepcopy, pickle.dumps):
                try:
                    way(part(runner))
                except (pickle.PicklingError, TypeError, AttributeError):
                    self.failed.add((name, way.__name__))
        for hub in (
            copy.deepcopy(runner.message_hub),
            pickle.loads(pickle.dumps(runner.message_hub)),
        ):
            self.histories.append(hub.get_scalar('train/loss')._log_history.tolist())
            hub.update_scalar('train/loss', 1e9)  # changes the copy only


@pytest.mark.parametrize('wrapper', ['OptimWrapper', 'SparseOptimWrapper'])
def test_parts_of_a_training_can_be_copied_as_with_stock(tmp_path: Path, wrapper: str) -> None:
    copied = {}
    for arm, hooks in (('stock', STOCK), ('ours', SPARSE)):
        cfg = config(tmp_path / arm, hooks)
        cfg.train_cfg.max_iters = 15
        cfg.param_scheduler = [dict(type='PolyLR', end=15, by_epoch=False)]
        cfg.custom_hooks = [dict(type='CopiesParts')]
        if arm == 'ours':
            cfg.train_cfg.type, cfg.optim_wrapper.type = 'PrefetchIterBasedTrainLoop', wrapper
            cfg.custom_hooks.append(dict(type='ThroughputMonitorHook'))
            cfg.default_hooks.checkpoint.type = 'AsyncCheckpointHook'
        runner = train(cfg)
        (hook,) = [one for one in runner.hooks if isinstance(one, CopiesParts)]
        copied[arm] = hook.failed, hook.histories
        assert max(runner.message_hub.get_scalar('train/loss')._log_history) < 1e9
    # mmengine's profiling decorator makes pickling the wrapper fail in both arms.
    assert copied['ours'] == copied['stock']
    assert {name for name, way in copied['ours'][0]} <= {'wrapper', 'schedulers'}
    assert [len(history) for history in copied['ours'][1]] == [4, 4, 13, 13]


@HOOKS.register_module()
class ClearsAndCopies(Hook):
    """Clear the histories in one iteration, and copy the hub in each."""

    priority = 'LOWEST'

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 5:
            runner.message_hub.log_scalars.clear()
        copy.deepcopy(runner.message_hub)


def test_hub_with_cleared_histories_can_be_copied(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=15)
    cfg.custom_hooks = [dict(type='ClearsAndCopies'), dict(type='ThroughputMonitorHook')]
    hub = train(cfg).message_hub
    assert len(hub.get_scalar('train/loss')._log_history) == 9
    assert len(hub.get_scalar('train/time')._log_history) > 0
