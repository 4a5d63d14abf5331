"""Trainings that save with stock's hook and with ours, and a comparison of their files."""

from __future__ import annotations

import itertools
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import (
    DATASETS,
    HOOKS,
    METRICS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
)
from mmengine.runner import Runner

from mmtempo.checkpoint.io.snapshot import Snapshot
from tests.testing.amp_training import StockOnCPU
from tests.testing.toy import STOCK, ToyDataset, ToyModel, by_epoch, config, with_evaluation

OPTIM_WRAPPERS.register_module('AmpOnCPU', module=StockOnCPU)
TOO_LONG = 10.0  # seconds; reached only if a fence is missing
KINDS = ('CheckpointHook', 'AsyncCheckpointHook')


@METRICS.register_module()
class Wavy(BaseMetric):
    """Metric whose scores rise and fall between evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list) -> dict:
        self.count += 1
        acc = (0.2, 0.5, 0.3, 0.7, 0.7, 0.1)[self.count % 6 - 1]
        loss = (3.0, 4.0, 2.0, 1.0, 5.0, 0.5)[self.count % 6 - 1]
        return {'acc': acc, 'val_loss': loss, 'part/acc': 1 - acc}


@MODELS.register_module()
class TwoOptimizers(ToyModel):
    """Toy model whose two halves have separate optimizers."""

    def train_step(self, data: dict, optim_wrapper: Any) -> dict:
        data = self.data_preprocessor(data)
        for half in ('first', 'rest'):
            losses, log_vars = self.parse_losses(self(**data, mode='loss'))
            optim_wrapper[half].update_params(losses)
        return log_vars


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class Halves:
    """Constructor of the optimizer wrappers of `TwoOptimizers`."""

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        pass

    def __call__(self, model: Any) -> Any:
        from mmengine.optim import OptimWrapper, OptimWrapperDict

        return OptimWrapperDict(
            first=OptimWrapper(torch.optim.SGD(model.net[0].parameters(), 0.01, momentum=0.9)),
            rest=OptimWrapper(torch.optim.AdamW(model.net[1:].parameters(), 0.01)),
        )


@MODELS.register_module()
class Odd(ToyModel):
    """Toy model with non-contiguous, tied, frozen, empty and zero-dimensional tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.tied = self.net[0]
        self.turned = torch.nn.Parameter(torch.rand(3, 5).t())
        self.frozen = torch.nn.Parameter(torch.rand(4), requires_grad=False)
        self.register_buffer('empty', torch.empty(0, 7))
        self.register_buffer('number', torch.tensor(3))
        self.register_buffer('mask', torch.eye(3) > 0)
        self.register_buffer('low', torch.rand(5).bfloat16())

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        losses = super().forward(inputs, data_samples, mode)
        if mode == 'loss':
            pixels = torch.stack(inputs).view(-1, 2, 2, 2)
            losses['loss_c'] = self.conv(pixels).square().mean() + self.turned.square().mean()
        return losses


@MODELS.register_module()
class MomentumEncoder(ToyModel):
    """Toy model that updates a parameter without gradient in its forward pass, through `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.key = torch.nn.Parameter(torch.ones(8, 8), requires_grad=False)

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        if mode == 'loss':
            self.key.data.lerp_(self.net[0].weight.data, 0.3)
        return super().forward(inputs, data_samples, mode)


@DATASETS.register_module()
class Described(ToyDataset):
    """Toy dataset with mmseg's class metainfo."""

    metainfo = dict(classes=('road', 'sky'), palette=[[1, 2, 3], [4, 5, 6]], label_map=None)


@HOOKS.register_module()
class Adds(Hook):
    """User's hook that puts its live state into checkpoints."""

    def __init__(self) -> None:
        self.seen = torch.zeros(3)
        self.rows: dict = defaultdict(list)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        self.seen += 1
        self.rows['at'].append(np.float32(batch_idx))

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        checkpoint['adds'] = dict(seen=self.seen, rows=self.rows, parts=(self.seen[1:], {3: None}))
        checkpoint['state_dict'].pop('net.2.bias')
        checkpoint['meta']['by'] = 'user'


class At(Hook):
    """Hook that calls functions after iterations, before anything is saved.

    Args:
        todo: Functions of the runner, by iteration number or by stage name.
    """

    priority = 'VERY_HIGH'

    def __init__(self, todo: dict) -> None:
        self.todo = todo

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.todo.get(runner.iter + 1, bool)(runner)

    def after_train_epoch(self, runner: Any) -> None:
        self.todo.get('after_train_epoch', bool)(runner)


@HOOKS.register_module()
class Meddler(Hook):
    """User's hook that changes weights and the message hub.

    Args:
        stages: Names of the stages where it does.
    """

    def __init__(self, stages: tuple = ()) -> None:
        self.stages = stages


def _meddling(stage: str) -> Callable:
    def meddle(self: Meddler, runner: Any, *args: Any, **kwargs: Any) -> None:
        for parameter in runner.model.parameters():
            parameter.data.mul_(1.01)
        runner.message_hub.update_info('meddled', runner.iter)

    return meddle


def meddler(stage: str) -> str:
    """Register a `Meddler` that overrides one stage only, and return its type name."""
    name = 'Meddler_' + stage
    if name not in HOOKS.module_dict:
        HOOKS.register_module(name, module=type(name, (Meddler,), {stage: _meddling(stage)}))
        HOOKS.get(name).__module__ = __name__
    return name


@pytest.fixture
def quick_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the formatting of configs, which takes longer than the rest of a stock save here."""
    monkeypatch.setattr(Config, 'pretty_text', property(lambda cfg: str(cfg.to_dict())))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Delay deferred copies until a fence is reached; return the number of tensors of each save."""
    reached = threading.Event()
    take, finish, fence = Snapshot.take, Snapshot.finish, Snapshot.await_copies
    counts: list[int] = []

    def late_take(self: Snapshot, *args: Any, **kwargs: Any) -> Any:
        reached.clear()
        trees = take(self, *args, **kwargs)
        counts.append(len(self._versions))
        return trees

    def late_finish(self: Snapshot) -> None:
        assert reached.wait(TOO_LONG)
        finish(self)

    def noted_fence(self: Snapshot) -> float:
        reached.set()
        return fence(self)

    monkeypatch.setattr(Snapshot, 'take', late_take)
    monkeypatch.setattr(Snapshot, 'finish', late_finish)
    monkeypatch.setattr(Snapshot, 'await_copies', noted_fence)
    yield counts
    reached.set()


def run_config(kind: str, root: Path, change: Callable | None = None, **checkpoint: Any) -> Config:
    """Return the config of 12 iterations, or 4 epochs of 5, with an evaluation every third one."""
    if 'out_dir' in checkpoint:
        checkpoint['out_dir'] = str(root / checkpoint['out_dir'])
    cfg = with_evaluation(config(root / 'work', STOCK))
    cfg.train_cfg.update(max_iters=12, val_interval=3)
    if checkpoint.setdefault('by_epoch', False):
        cfg = by_epoch(cfg, 4)
        cfg.train_dataloader.batch_size = 8
    cfg.val_dataloader.batch_size = 20
    cfg.val_evaluator = dict(type='Wavy')
    cfg.default_hooks.checkpoint = dict(type=kind, **checkpoint)
    if change is not None:
        change(cfg)
    return cfg


def build(kind: str, root: Path, change: Callable | None = None, **checkpoint: Any) -> Runner:
    return Runner.from_cfg(run_config(kind, root, change, **checkpoint))


def run(kind: str, root: Path, change: Callable | None = None, **checkpoint: Any) -> Runner:
    runner = build(kind, root, change, **checkpoint)
    runner.train()
    return runner


def hook_of(runner: Any) -> Any:
    return next(hook for hook in runner.hooks if type(hook).__name__ in KINDS)


def left_by(root: Path) -> list[str]:
    """Return the names of all files but logs, with the checksums of published files masked."""
    names = [str(path.relative_to(root)) for path in root.rglob('*') if path.is_file()]
    names = [name for name in names if not re.search(r'/test\d+|/\d{8}_|/vis_data/|\.py$', name)]
    return sorted(re.sub(r'-[0-9a-f]{8}\.pth', '-SUM.pth', name) for name in names)


def logged_lines(runner: Any, level: str = '') -> str:
    (path,) = Path(runner.log_dir).glob('*.log')
    return '\n'.join(
        line for line in path.read_text().splitlines() if f'mmengine - {level}' in line
    )


def load(path: Path) -> dict:
    return torch.load(path, weights_only=False)


def assert_same_files(stock: Path, ours: Path) -> None:
    """Assert equal files, markers and checkpoints, except for times and experiment names."""
    assert left_by(ours) == left_by(stock)
    for name in left_by(stock):
        if name.endswith('.pth'):
            pattern = name.replace('-SUM', '-????????')
            (one,), (other,) = stock.glob(pattern), ours.glob(pattern)
            found = differences(load(one), load(other), (stock, ours))
            assert not found, (name, found)
        else:
            assert text((stock / name).read_text(), stock) == text((ours / name).read_text(), ours)


def text(value: str, root: Path) -> str:
    """Return a text without the parts that differ between any two runs."""
    value = value.replace(str(root), 'ROOT').replace('AsyncCheckpointHook', 'CheckpointHook')
    value = re.sub(r'\btest\d+(_\d{8}_\d{6})?\b', 'TEST', value)
    return re.sub(r'\s+', '', value)  # names of other length move the line breaks of a config


VARIES = re.compile(r"time'\]|'eta'\]")


def differences(one: Any, other: Any, roots: tuple[Path, Path], where: str = '') -> list[str]:
    """Return the differences between two checkpoints: types, order, bits, strides."""
    if type(one) is not type(other):
        return [f'{where}: {type(one)} {type(other)}']
    if VARIES.search(where):
        return []
    if isinstance(one, torch.Tensor):
        return [] if _bits(one) == _bits(other) else [f'{where}: {one} {other}']
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.tobytes() == other.tobytes()
        return [] if same else [f'{where}: {one} {other}']
    if isinstance(one, str):
        same = text(one, roots[0]) == text(other, roots[1])
        return [] if same else [f'{where}: {one!r} {other!r}']
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f'{where}: keys {list(one)} {list(other)}']
        parts = [(f'[{key!r}]', one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f'{where}: lengths {len(one)} {len(other)}']
        parts = [(f'[{i}]', *pair) for i, pair in enumerate(zip(one, other))]
    elif not hasattr(one, '__dict__') or callable(one):
        return [] if repr(one) == repr(other) else [f'{where}: {one!r} {other!r}']
    if hasattr(one, '__dict__'):
        parts.append(('.vars', vars(one), vars(other)))
    found = [differences(first, second, roots, where + name) for name, first, second in parts]
    return list(itertools.chain(*found))


def _bits(tensor: torch.Tensor) -> tuple:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, content
