"""Late copies contain the values at the time of the save, also if they are made at the fence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import LOOPS
from mmengine.runner import ValLoop

from mmtempo.checkpoint.io.snapshot import Snapshot
from tests.testing.checkpoints import (
    KINDS,
    TOO_LONG,
    assert_same_files,
    hook_of,
    late,
    logged_lines,
    meddler,
    quick_text,
    run,
)
from tests.testing.toy import ToyModel

__all__ = ['late', 'quick_text']
pytestmark = pytest.mark.usefixtures('quick_text')


@LOOPS.register_module()
class BareValLoop(ValLoop):
    """Evaluation loop that calls no hooks except `before_val_epoch` and `after_val_epoch`."""

    @torch.no_grad()
    def run(self) -> dict:
        self.runner.call_hook('before_val_epoch')
        if hasattr(hook_of(self.runner), '_saver'):
            hook_of(self.runner)._saver.await_copies()  # a copy made after this is too late
        self.runner.model.eval()
        for batch in self.dataloader:
            outputs = self.runner.model.val_step(batch)
            self.evaluator.process(data_samples=outputs, data_batch=batch)
        metrics = self.evaluator.evaluate(len(self.dataloader.dataset))
        self.runner.call_hook('after_val_epoch', metrics=metrics)
        return metrics


def nothing(cfg: Config) -> None:
    pass


def adamw(cfg: Config) -> None:
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=0.01)


def averages(**options: Any) -> Callable:
    def change(cfg: Config) -> None:
        # The step is skipped in the iterations where averages are updated right after a save.
        cfg.optim_wrapper.update(accumulative_counts=3)
        cfg.custom_hooks = [dict(type='EMAHook', momentum=0.3, **options)]

    return change


def overflow(cfg: Config) -> None:
    averages()(cfg)
    scale = dict(init_scale=2.0**50, growth_interval=1000)
    cfg.optim_wrapper.update(type='AmpOnCPU', dtype='float16', loss_scale=scale)
    cfg.optim_wrapper.update(accumulative_counts=1)


def two_optimizers(cfg: Config) -> None:
    cfg.model.type = 'TwoOptimizers'
    cfg.optim_wrapper = dict(constructor='Halves')


def momentum_encoder(cfg: Config) -> None:
    cfg.model.type = 'MomentumEncoder'


@pytest.mark.parametrize(
    ('change', 'options'),
    [
        (nothing, dict()),  # before the step of the optimizer; BatchNorm's buffers, in the forward
        (adamw, dict(interval=1)),
        (two_optimizers, dict()),
        (averages(), dict()),  # before the update of the averages
        (averages(update_buffers=True), dict()),
        (overflow, dict(interval=1)),
        (averages(), dict(interval=3, save_last=False)),  # before validation swaps them
        (averages(), dict(interval=1, by_epoch=True)),
        (momentum_encoder, dict()),
    ],
    ids=lambda one: getattr(one, '__name__', str(one)),
)
def test_saved_values_are_those_at_the_save(
    change: Callable, options: dict, tmp_path: Path, late: list
) -> None:
    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        runner = run(kind, root, change, **dict(dict(interval=2, save_best='acc'), **options))
    assert_same_files(*roots)
    assert len(late) >= 3
    assert min(late) >= 6  # so late copies were made
    assert 'ERROR' not in logged_lines(runner)


@pytest.mark.parametrize(
    ('stage', 'by_epoch', 'priority'),
    [
        ('before_train_epoch', True, 'NORMAL'),
        ('before_train_iter', False, 'NORMAL'),
        ('after_train_iter', False, 'NORMAL'),
        ('after_train_epoch', False, 'NORMAL'),
        ('before_val', False, 'NORMAL'),
        ('before_val_epoch', False, 'NORMAL'),
        ('after_val_epoch', False, 'NORMAL'),
        ('after_val', False, 'NORMAL'),
        ('after_train', True, 'NORMAL'),
        # after the hook that saves
        ('after_train_iter', False, 'LOWEST'),
        ('after_train_epoch', True, 'LOWEST'),
        ('after_val_epoch', False, 'LOWEST'),
    ],
)
def test_hooks_of_users_may_change_weights_after_a_save(
    stage: str, by_epoch: bool, priority: str, tmp_path: Path, late: list
) -> None:
    def change(cfg: Config) -> None:
        cfg.custom_hooks = [dict(type=meddler(stage), priority=priority), dict(type='EMAHook')]
        if 'val' not in stage:  # an evaluation has fences itself
            cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None

    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        runner = run(kind, root, change, interval=1, save_best='acc', by_epoch=by_epoch)
    assert_same_files(*roots)
    is_after = priority == 'LOWEST'
    assert ('may change weights after a save' in logged_lines(runner)) == is_after
    assert ('before the forward pass' in logged_lines(runner)) == (stage == 'before_train_iter')
    assert set(late) == {0} if is_after else min(late) > 0


def test_averages_updated_after_the_save_are_not_in_it(tmp_path: Path, late: list) -> None:
    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        run(kind, root, averages(priority='LOWEST'), interval=2, save_best='acc')
    assert_same_files(*roots)
    assert set(late) == {0}


def test_evaluation_that_calls_no_hooks_before_it(tmp_path: Path, late: list) -> None:
    """A loop of a user may not call `before_val`, but averages are swapped in all the same."""

    def change(cfg: Config) -> None:
        averages()(cfg)
        cfg.val_cfg.type = 'BareValLoop'

    roots = (tmp_path / 'stock', tmp_path / 'ours')
    for kind, root in zip(KINDS, roots):
        run(kind, root, change, interval=3, save_last=False)
    assert_same_files(*roots)
    assert min(late) > 0


def test_forward_pass_does_not_wait_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay the copy until after the forward pass that follows the save."""
    passed = threading.Event()
    take, finish, forward = Snapshot.take, Snapshot.finish, ToyModel.forward
    waited = []

    def noted_take(self: Snapshot, *args: Any, **kwargs: Any) -> Any:
        passed.clear()
        return take(self, *args, **kwargs)

    def finish_late(self: Snapshot) -> None:
        waited.append(passed.wait(TOO_LONG))
        finish(self)

    def noted_forward(self: ToyModel, *args: Any, **kwargs: Any) -> Any:
        result = forward(self, *args, **kwargs)
        passed.set()
        return result

    monkeypatch.setattr(Snapshot, 'take', noted_take)
    monkeypatch.setattr(Snapshot, 'finish', finish_late)
    monkeypatch.setattr(ToyModel, 'forward', noted_forward)

    def rarely_evaluated(cfg: Config) -> None:
        averages()(cfg)
        cfg.train_cfg.val_interval = 100

    run(KINDS[1], tmp_path, rarely_evaluated, interval=4, save_last=False, save_begin=2)
    assert waited == [True] * 3  # at 2, at 6, and at 10
