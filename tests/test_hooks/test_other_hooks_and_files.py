"""Hooks of users next to `AsyncCheckpointHook`, compared with `CheckpointHook`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import load_checkpoint

from mmtempo.hooks import AsyncCheckpointHook
from tests.testing.toy import STOCK, by_epoch, config, train, with_evaluation


@HOOKS.register_module()
class Uploads(Hook):
    """Read each new file as soon as the message hub names it."""

    priority = 'LOWEST'

    def before_run(self, runner: Any) -> None:
        self.found: list[tuple[str, int]] = []
        self.missing: list[str] = []
        self._seen: dict[str, Any] = {}

    def _read(self, runner: Any, key: str) -> None:
        path = runner.message_hub.get_info(key)
        if path is None or path == self._seen.get(key):
            return
        self._seen[key] = path
        if not os.path.isfile(path):
            self.missing.append(os.path.basename(path))
            return
        content = load_checkpoint(runner.model, path, map_location='cpu')
        self.found.append((os.path.basename(path), content['meta']['iter']))

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._read(runner, 'last_ckpt')

    def after_train_epoch(self, runner: Any) -> None:
        self._read(runner, 'last_ckpt')

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        self._read(runner, 'best_ckpt')


@HOOKS.register_module()
class Wraps(Hook):
    """Call a checkpoint hook that is not registered with the runner.

    Args:
        inner: Config of that hook.
    """

    priority = 'VERY_LOW'

    def __init__(self, inner: dict) -> None:
        self.inner: CheckpointHook = HOOKS.build(inner)

    def before_train(self, runner: Any) -> None:
        self.inner.before_train(runner)

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.inner.after_train_iter(runner, *args, **kwargs)

    def after_train(self, runner: Any) -> None:
        self.inner.after_train(runner)


@HOOKS.register_module()
class ChangesFolder(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 3:
            os.chdir('/')


def short(work: Path, hook: str, **checkpoint: Any) -> Config:
    cfg = with_evaluation(config(work, STOCK))
    cfg.train_cfg.update(max_iters=12, val_interval=4)
    cfg.default_hooks.checkpoint = dict(type=hook, by_epoch=False, interval=3, **checkpoint)
    return cfg


@pytest.mark.parametrize('counts', ['iterations', 'epochs'])
def test_later_hook_finds_the_saved_file(tmp_path: Path, counts: str) -> None:
    found = {}
    for hook in ('CheckpointHook', 'AsyncCheckpointHook'):
        cfg = short(tmp_path / hook, hook, save_best='seen', rule='greater')
        if counts == 'epochs':
            cfg = by_epoch(cfg, epochs=2)
            cfg.default_hooks.checkpoint.interval = 1
        cfg.custom_hooks = [dict(type='Uploads')]
        runner = train(cfg)
        (uploads,) = [one for one in runner.hooks if isinstance(one, Uploads)]
        found[hook] = uploads.found, uploads.missing
    assert found['AsyncCheckpointHook'] == found['CheckpointHook']
    assert not found['AsyncCheckpointHook'][1]
    assert len(found['AsyncCheckpointHook'][0]) == (6 if counts == 'iterations' else 3)


def test_saves_do_not_wait_for_earlier_hooks(tmp_path: Path) -> None:
    cfg = short(tmp_path, 'AsyncCheckpointHook')
    cfg.custom_hooks = [dict(type='Uploads', priority='NORMAL')]
    runner = train(cfg)
    (saver,) = [one for one in runner.hooks if isinstance(one, AsyncCheckpointHook)]
    assert not saver._waits


def test_relative_out_dir_is_kept_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = short(tmp_path / 'work', 'AsyncCheckpointHook', out_dir='out', max_keep_ckpts=2)
    cfg.custom_hooks = [dict(type='ChangesFolder')]
    runner = train(cfg)
    names = sorted(path.name for path in (tmp_path / 'out' / 'work').glob('*.pth'))
    assert names == ['iter_12.pth', 'iter_9.pth']
    assert runner.message_hub.get_info('last_ckpt') == 'out/work/iter_12.pth'


def test_a_relative_out_dir_is_published_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published file is next to the checkpoints."""
    monkeypatch.chdir(tmp_path)
    published = dict(published_keys=['state_dict'], save_best='seen', rule='greater')
    cfg = short(tmp_path / 'work', 'AsyncCheckpointHook', out_dir='out', **published)
    cfg.custom_hooks = [dict(type='ChangesFolder')]
    train(cfg)
    names = sorted(path.name for path in (tmp_path / 'out' / 'work').glob('*-*.pth'))
    assert [name.partition('-')[0] for name in names] == ['best_seen_iter_4', 'iter_12']


def test_hook_called_by_another_hook_saves(tmp_path: Path) -> None:
    names = {}
    for hook in ('CheckpointHook', 'AsyncCheckpointHook'):
        cfg = short(tmp_path / hook, hook)
        inner = cfg.default_hooks.pop('checkpoint')
        cfg.default_hooks.checkpoint = None
        cfg.custom_hooks = [dict(type='Wraps', inner=inner)]
        runner = train(cfg)
        names[hook] = sorted(path.name for path in Path(runner.work_dir).glob('*.pth'))
    assert names['AsyncCheckpointHook'] == names['CheckpointHook'] != []
