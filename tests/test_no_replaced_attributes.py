"""A training replaces no attribute of an object that is not ours, and leaves nothing attached."""

from __future__ import annotations

import builtins
import gc
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizers

from tests.testing.toy import SPARSE, config, with_evaluation

# Known differences, by the begin of their names.
KNOWN = (
    'signal SIGCHLD',  # ignored from SIGTERM on, and not restored
    'hooks: SnapshotFence',  # inserted before all others, and not removed
    'class of model.net',  # replaced by activation checkpointing until the end of the run
)
# Public means: hooks that torch or mmengine register, and the handlers of the two signals.
PUBLIC = ('torch hooks of ', 'registered hook', 'signal SIGINT', 'signal SIGTERM', 'gc.callbacks')
MODULES = (sys, threading, builtins, warnings, signal, gc, os, time, pickle, torch)
CLASSES = (torch.Tensor, torch.nn.Module, Optimizer, torch.optim.SGD, Runner, Hook)
HOOKS_OF_TORCH = ('_hooks', '_pre_hooks', '_hooks_with_kwargs', '_hooks_always_called')


class Recorded(Runner):
    """Runner that knows which hooks were registered, rather than inserted into its list."""

    registered: list[Hook]
    built_hooks: list[Hook]  # those of the config

    def register_hook(self, hook: Any, *args: Any, **kwargs: Any) -> None:
        before = list(self.hooks)
        super().register_hook(hook, *args, **kwargs)
        new = [one for one in self.hooks if one not in before]
        self.registered = [*vars(self).get('registered', []), *new]


def state_of(runner: Any) -> dict[str, Any]:
    """Return what a training could replace, by name."""
    found: dict[str, Any] = {}
    for part in MODULES:
        found.update(_callables(part.__name__, vars(part)))
    for owner in CLASSES:
        found.update((f'{owner.__name__}.{name}', one) for name, one in vars(owner).items())
    for name, one in _objects(runner):
        found[f'class of {name}'] = type(one)
        shadowing = {key: value for key, value in vars(one).items() if _is_method(one, key)}
        found.update((f'{name}.{key}', value) for key, value in shadowing.items())
    for name, one in (
        *_objects(runner),
        ('modules', torch_modules),
        ('optimizers', torch_optimizers),
    ):
        for key, value in vars(one).items():
            if key.endswith(HOOKS_OF_TORCH) and isinstance(value, dict):
                found[f'torch hooks of {name}: {key}'] = list(value.values())
    for hook in runner.hooks:
        kind = 'registered hook' if hook in runner.registered else 'hooks'
        found[f'{kind}: {type(hook).__name__}'] = hook
        if type(getattr(hook, 'file_backend', None)).__module__.startswith('mmtempo'):
            found[f'{type(hook).__name__}.file_backend'] = hook.file_backend
    for number in signal.valid_signals():
        found[f'signal {getattr(number, "name", number)}'] = signal.getsignal(number)
    found.update({'sys.settrace': sys.gettrace(), 'sys.setprofile': sys.getprofile()})
    found['threading.excepthook'] = threading.excepthook
    found['gc.callbacks'] = list(gc.callbacks)
    return found


def _objects(runner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a training and their names."""
    yield 'runner', runner
    for name, module in runner.model.named_modules():
        yield f'model.{name}'.rstrip('.'), module
    yield 'optim_wrapper', runner.optim_wrapper
    yield 'optimizer', runner.optim_wrapper.optimizer
    for loop in (runner.train_loop, runner.val_loop):
        yield type(loop).__name__, loop
        yield f'{type(loop).__name__}.dataloader', loop.dataloader
        yield f'{type(loop).__name__}.dataset', loop.dataloader.dataset
    yield 'message_hub', runner.message_hub
    yield 'visualizer', runner.visualizer
    yield 'logger', runner.logger
    for hook in runner.built_hooks:
        yield type(hook).__name__, hook


def _callables(name: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if callable(value) and not isinstance(value, type):
            yield f'{name}.{key}', value


def _is_method(one: Any, name: str) -> bool:
    return callable(getattr(type(one), name, None))


def differences(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    missing = object()
    return {
        name
        for name in before.keys() | after.keys()
        if not _same(before.get(name, missing), after.get(name, missing))
        and not name.endswith('__slotnames__')  # a cache of Python's `copy`
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other


def without(names: set[str], *prefixes: str) -> set[str]:
    return {name for name in names if not name.startswith(prefixes)}


@HOOKS.register_module()
class TakesState(Hook):
    """Record the state in the middle of a training, and end it there if asked to.

    Args:
        ends: Whether a signal ends the training.
    """

    found: dict[str, dict] = {}

    def __init__(self, ends: bool = False) -> None:
        self.ends = ends

    def after_train_iter(self, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        if batch_idx in (5, 25):  # after a save and before an evaluation, and after both
            self.found[f'iteration {batch_idx}'] = state_of(runner)
        if self.ends and batch_idx == 26:
            signal.raise_signal(signal.SIGTERM)

    def after_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.found['evaluation'] = state_of(runner)


def our_config(work: Path, tunes: bool) -> Config:
    cfg = with_evaluation(config(work, SPARSE))
    cfg.train_cfg.update(type='PrefetchIterBasedTrainLoop', max_iters=40, val_interval=20)
    cfg.val_cfg.type = 'PrefetchValLoop'
    cfg.optim_wrapper.type = 'SparseOptimWrapper'
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    cfg.default_hooks.checkpoint = dict(
        type='AsyncCheckpointHook', by_epoch=False, interval=5, max_keep_ckpts=1
    )
    cfg.custom_hooks = [dict(type='TakesState')]
    if tunes:
        tuning = dict(type='ModelTuningHook', activation_checkpointing=['net'], channels_last=True)
        cfg.custom_hooks.append(tuning)
    return cfg


def built(cfg: Config) -> Any:
    """Return a runner with all parts that `train` builds, which torch changes when it does."""
    TakesState.found.clear()
    runner: Any = Recorded.from_cfg(cfg)
    runner.built_hooks = list(runner.hooks)
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner._val_loop = runner.build_val_loop(runner._val_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    return runner


@pytest.fixture(autouse=True)
def handles_interrupts() -> Iterator[None]:
    """Handle SIGINT as in a terminal: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def with_stock_loops(cfg: Config) -> None:
    cfg.train_cfg.type, cfg.val_cfg.type = 'IterBasedTrainLoop', 'ValLoop'


@pytest.mark.parametrize('tunes', [False, True], ids=['default', 'tuned'])
@pytest.mark.parametrize('stock', [False, True], ids=['our loops', 'stock loops'])
def test_training_replaces_nothing(stock: bool, tunes: bool, tmp_path: Path) -> None:
    cfg = our_config(tmp_path, tunes)
    if stock:
        with_stock_loops(cfg)
    runner = built(cfg)
    before = state_of(runner)
    runner.train()
    assert list(TakesState.found) == ['iteration 5', 'evaluation', 'iteration 25']
    for moment, state in TakesState.found.items():
        found = differences(before, state)
        assert without(found, *PUBLIC, *KNOWN) == set(), moment
        assert any(name.startswith('torch hooks of model') for name in found)
        assert {'signal SIGINT', 'signal SIGTERM'} <= found
    assert without(differences(before, state_of(runner)), *KNOWN) == set()


def test_training_that_a_signal_ends_replaces_nothing(tmp_path: Path) -> None:
    """No hook runs at its end, so that hooks stay registered, and do nothing."""
    cfg = our_config(tmp_path, tunes=False)
    cfg.custom_hooks[0].ends = True
    runner = built(cfg)
    before = state_of(runner)
    with pytest.raises(SystemExit):
        runner.train()
    assert runner.iter < 40
    found = without(differences(before, state_of(runner)), *KNOWN)
    assert without(found, 'torch hooks of ', 'registered hook', 'gc.callbacks') == set()


def test_each_kind_of_replacement_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = built(our_config(tmp_path, tunes=False))
    before = state_of(runner)
    assert differences(before, state_of(runner)) == set()

    class Other(type(runner.model.net)):  # type: ignore[misc]
        pass

    monkeypatch.setattr(runner.model.net, '__class__', Other)
    monkeypatch.setattr(runner, 'call_hook', runner.call_hook)
    monkeypatch.setattr(runner.model, 'forward', runner.model.forward)
    monkeypatch.setattr(runner.hooks[0], 'before_run', runner.hooks[0].before_run)
    monkeypatch.setattr(sys, 'unraisablehook', print)
    monkeypatch.setattr(threading, 'excepthook', print)
    monkeypatch.setattr(torch.Tensor, 'backward', print)
    monkeypatch.setattr(torch.nn.Module, 'another', print, raising=False)
    monkeypatch.setattr(runner, '_hooks', [Hook(), *runner.hooks])
    runner.register_hook(TakesState())
    runner.model.net[0].register_forward_hook(print)
    runner.optim_wrapper.optimizer.register_step_pre_hook(print)
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = differences(before, state_of(runner))
    signal.signal(signal.SIGTERM, old)
    assert found == {
        'class of model.net', 'runner.call_hook', 'model.forward', 'sys.unraisablehook',
        f'{type(runner.hooks[1]).__name__}.before_run', 'threading.excepthook', 'Tensor.backward',
        'Module.another', 'hooks: Hook', 'registered hook: TakesState',
        'torch hooks of model.net.0: _forward_hooks', 'signal SIGTERM',
        'torch hooks of optimizer: _optimizer_step_pre_hooks',
    }  # fmt: skip
