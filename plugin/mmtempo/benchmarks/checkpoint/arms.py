"""Trainings that run iteration by iteration and save in different ways."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import IterBasedTrainLoop, Runner

from mmtempo.checkpoint.fence import SnapshotFence
from mmtempo.checkpoint.io.writer_process import sync_folder
from mmtempo.cli.config import resolve_config_path
from mmtempo.hooks import AsyncCheckpointHook

CONFIG = 'mmtempo::lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py'
SAVES_EVERY = 1000
LEAD = 2  # iterations before the one that saves
AFTER = 10  # iterations of a round after the save is durable
WITHOUT_SAVE = 21  # iterations of a round without a save
_names = itertools.count()


class _Timed(Hook):
    """Hook mixin that adds up the seconds that the main thread spends in the hook."""

    in_hook = 0.0
    in_fence = 0.0
    is_busy = False

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        super().after_train_iter(*args, **kwargs)
        self.in_hook += time.perf_counter() - start


class StockArm(_Timed, CheckpointHook):
    """The stock hook, timed."""


class SyncedArm(StockArm):
    """The stock hook with synced files.

    It is as safe against a power failure as ours, except that it removes old files before.
    """

    def _save_checkpoint_with_step(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint_with_step(*args, **kwargs)
        with open(self.last_ckpt, 'rb') as file:
            os.fsync(file.fileno())
        sync_folder(os.path.dirname(self.last_ckpt))


class OurArm(_Timed, AsyncCheckpointHook):
    """Our hook, with its fence timed as well."""

    @property
    def is_busy(self) -> bool:  # type: ignore[override]
        return self._saver is not None and self._saver.is_busy

    def _before_change(self) -> bool:
        start = time.perf_counter()
        is_copying = super()._before_change()
        self.in_fence += time.perf_counter() - start
        return is_copying


# In the order of the table.
ARMS: dict[str, type[Hook] | None] = {
    'no save': None,
    'stock': StockArm,
    'stock + fsync': SyncedArm,
    'ours': OurArm,
}


@dataclass(frozen=True)
class Shape:
    """Work of a training step, about 100 ms on two slow cores.

    Attributes:
        work: Function that stands for forward and backward.
        threads: Number of torch threads; None keeps the current number.
    """

    work: Callable[[], None]
    threads: int | None = None


class _Object:
    value = 0


def _python(operations: int = 2_000_000) -> None:
    target, table = _Object(), {}
    for number in range(operations):
        target.value = number
        table[number & 255] = target.value


class _Matmul:
    def __init__(self, times: int, size: int = 700) -> None:
        self._times, self._size = times, size
        self._operands: list[torch.Tensor] = []

    def __call__(self) -> None:
        if not self._operands:
            self._operands = [torch.randn(self._size, self._size) for _ in range(3)]
        left, right, out = self._operands
        for _ in range(self._times):
            torch.mm(left, right, out=out)


SHAPES = {
    'sleep': Shape(lambda: time.sleep(0.1)),  # like the host while a GPU works
    'python': Shape(_python),
    'matmul 1': Shape(_Matmul(13), threads=1),
    'matmul 2': Shape(_Matmul(26), threads=2),
}


class FakeStep(BaseModel):
    """Model with the parameters of a network and an unrelated forward pass.

    The saved state changes: a few parameters by the optimizer, and the statistics of a BatchNorm
    in the forward pass.

    Args:
        network: Network whose parameters are saved.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.work: Callable[[], None] = SHAPES['sleep'].work
        self.norm = torch.nn.BatchNorm1d(64)
        self._statistics = list(self.norm.buffers())
        self._trained = [one for one in network.parameters() if one.numel() <= 4096][:8]

    def init_weights(self) -> None:
        """Keep the weights: their values do not change the cost of a save."""

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.work()
        for buffer in self._statistics:  # calling BatchNorm would keep all torch threads spinning
            buffer.add_(1)
        return dict(loss=sum(parameter.sum() for parameter in self._trained))


class SteppedLoop(IterBasedTrainLoop):
    """Loop whose `run` only begins the training; `step` then runs single iterations."""

    _iter: int

    def run(self) -> Any:
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        return self.runner.model

    def approach_save(self) -> None:
        """Skip to `LEAD` iterations before the next one that saves."""
        self._iter = (self._iter // SAVES_EVERY + 1) * SAVES_EVERY - 1 - LEAD

    def step(self) -> float:
        """Run one iteration; return its seconds."""
        start = time.perf_counter()
        self.run_iter(dict(inputs=torch.zeros(1)))
        return time.perf_counter() - start

    def end(self) -> None:
        """End the training."""
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')


# Hooks that arms do not share when they share a training.
_OWN_HOOKS = (CheckpointHook, SnapshotFence)


@dataclass
class Round:
    """Times of the iterations of an arm around one save.

    Attributes:
        seconds: Seconds of each iteration, beginning with the one that saves.
        hook: Seconds in the checkpoint hook. Defaults to 0.0.
        fence: Seconds in which the optimizer waited for the snapshot. Defaults to 0.0.
    """

    seconds: list[float]
    hook: float = 0.0
    fence: float = 0.0

    @property
    def usual(self) -> float:
        """Median seconds of an iteration."""
        return statistics.median(self.seconds)

    def lost(self, usual: float) -> dict[str, float]:
        """Return the seconds lost to the save, in total and by cause.

        Args:
            usual: Seconds of an iteration without a save.
        """
        lost = sum(seconds - usual for seconds in self.seconds)
        rest = lost - self.hook - self.fence
        return dict(lost=lost, hook=self.hook, fence=self.fence, interference=rest)


class Arm:
    """Real Runner that trains a `FakeStep`.

    Args:
        name: Key of `ARMS`.
        width: `embed_dims` of the Swin backbone; 96 is Swin-T.
        folder: Folder for its checkpoints.
        shared: Arm whose training this arm shares, so that both have the same parameters at the
            same addresses and differ in their checkpoint hook only. Defaults to None.
    """

    def __init__(self, name: str, width: int, folder: str, shared: Arm | None = None) -> None:
        kind = ARMS[name]
        self.hook: Any = None
        if kind is not None:
            self.hook = kind(by_epoch=False, interval=SAVES_EVERY, max_keep_ckpts=2)
        if isinstance(self.hook, OurArm):
            self.hook.save_on_signal = False  # this training is never resumed
        self.work_dir = os.path.join(folder, f'{name}-{width}'.replace(' ', '_'))
        self.runner: Runner = _begin(width, self.work_dir) if shared is None else shared.runner
        self.loop: SteppedLoop = self.runner.train_loop
        # The checkpoint hook comes last, as in any training.
        others = [hook for hook in self.runner.hooks if not isinstance(hook, _OWN_HOOKS)]
        self._hooks = others if self.hook is None else [*others, self.hook]
        self._enter()
        if self.hook is not None:
            for stage in ('before_run', 'before_train', 'before_train_epoch'):
                getattr(self.hook, stage)(self.runner)

    @property
    def state_bytes(self) -> int:
        """Bytes of the saved tensors."""
        tensors = list(self.runner.model.state_dict().values())
        for state in self.runner.optim_wrapper.optimizer.state.values():
            tensors += state.values()
        return sum(tensor.nbytes for tensor in tensors)

    def run(self, work: Callable[[], None]) -> Round:
        """Run the iterations around one save: until it is durable, and `AFTER` more.

        Args:
            work: Work of each step.
        """
        self._enter()
        self.runner.model.work = work
        self.loop.approach_save()
        for _ in range(LEAD):
            self.loop.step()
        if self.hook is None:
            return Round([self.loop.step() for _ in range(WITHOUT_SAVE)])
        self.hook.in_hook = self.hook.in_fence = 0.0
        seconds = [self.loop.step()]
        saved = self.loop.iter
        while self.hook.is_busy:
            seconds.append(self.loop.step())
        seconds += [self.loop.step() for _ in range(AFTER)]
        path = os.path.join(self.work_dir, f'iter_{saved}.pth')
        if not os.path.isfile(path) or os.path.getsize(path) < self.state_bytes:
            raise RuntimeError(f'{path} was not saved completely; its round does not count')
        return Round(seconds, self.hook.in_hook, self.hook.in_fence)

    def close(self) -> None:
        """End the training."""
        self._enter()
        self.loop.end()

    def _enter(self) -> None:
        """Give the training the hooks and the work dir of this arm."""
        self.runner._hooks, self.runner._work_dir = self._hooks, self.work_dir
        os.makedirs(self.work_dir, exist_ok=True)


def _begin(width: int, folder: str) -> Runner:
    """Return a runner without checkpoint hook before its first iteration."""
    cfg = Config.fromfile(resolve_config_path(CONFIG))
    cfg.model.backbone.update(embed_dims=width, init_cfg=None)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        network = MODELS.build(cfg.model)
    runner = Runner(
        FakeStep(network),
        folder,
        train_dataloader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.zeros(1))
        ),
        train_cfg=dict(type=SteppedLoop, max_iters=10**9),
        optim_wrapper=cfg.optim_wrapper,
        param_scheduler=cfg.param_scheduler,
        default_hooks=dict(logger=None, checkpoint=None),
        default_scope=cfg.default_scope,
        experiment_name=f'checkpoint-{next(_names)}',
        randomness=dict(seed=0),
        log_level='ERROR',
        cfg=cfg,
    )
    # Log lines are written to the file, as in a training, but not to the terminal.
    for handler in runner.logger.handlers:
        if hasattr(handler, 'baseFilename'):
            handler.setLevel('INFO')
    runner.logger.setLevel('INFO')
    runner.train()
    _fill(runner)
    return runner


def _fill(runner: Runner) -> None:
    """Fill the state of the optimizer, which it creates at its first step."""
    optimizer = runner.optim_wrapper.optimizer
    for parameter in runner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for state in optimizer.state.values():
        state['exp_avg'].normal_()
        state['exp_avg_sq'].uniform_()
