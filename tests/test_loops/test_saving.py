"""The last state is saved by the checkpoint hook of the run, stock's or ours; signals are read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from mmengine.hooks import CheckpointHook, Hook

from mmtempo.loops.saving import save_state, stop_if_asked
from tests.testing.noisy import noisy
from tests.testing.toy import train


class SavesNow(CheckpointHook):
    def __init__(self) -> None:
        super().__init__()
        self.saved: list[Any] = []

    def save_now(self, runner: Any) -> None:
        self.saved.append(runner)


def test_hook_that_can_save_now_is_used_once() -> None:
    hooks = [SavesNow(), SavesNow()]
    runner = SimpleNamespace(hooks=[Hook(), *hooks])
    save_state(runner)
    assert [hook.saved for hook in hooks] == [[runner], []]


def test_all_hooks_that_read_signals_are_asked() -> None:
    asked: list[Any] = []
    one = SimpleNamespace(stop_if_asked=asked.append)
    runner = SimpleNamespace(hooks=[Hook(), one, one])
    stop_if_asked(runner)
    assert asked == [runner, runner]


def test_run_without_checkpoints_saves_nothing() -> None:
    save_state(SimpleNamespace(hooks=[Hook()]))  # a save would need `save_checkpoint`


def test_stock_hook_saves_the_state_after_the_last_iteration(tmp_path: Path) -> None:
    """`AsyncCheckpointHook` saves within a failing training, see `test_training_batches.py`."""
    cfg = noisy(tmp_path, iterations=5)
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', interval=-1, save_last=False)
    runner = train(cfg)
    assert not list(tmp_path.glob('*.pth'))
    save_state(runner)
    saved = torch.load(tmp_path / 'interrupted.pth', weights_only=False)
    assert saved['meta']['iter'] == 5
    for key, value in runner.model.state_dict().items():
        assert torch.equal(saved['state_dict'][key], value), key
