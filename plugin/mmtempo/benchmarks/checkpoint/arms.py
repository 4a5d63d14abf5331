"""A training that saves in one of several ways, taken iteration by iteration."""

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
from mmtempo.checkpoint.io import writer
from mmtempo.checkpoint.io.writer_process import replace_durably, sync_folder, temporary_of
from mmtempo.cli.config import resolve_config_path
from mmtempo.hooks import AsyncCheckpointHook

CONFIG = 'mmtempo::lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py'
SAVES_EVERY = 1000
LEAD = 2  # iterations before the one that saves
AFTER = 10  # iterations after the one at whose end the save is durable
WITHOUT_SAVE = 21
_names = itertools.count()


class _Timed(Hook):
    """Knows how long the training was in it."""

    in_hook = 0.0
    in_fence = 0.0
    is_busy = False

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        super().after_train_iter(*args, **kwargs)
        self.in_hook += time.perf_counter() - start


class StockArm(_Timed, CheckpointHook):
    """As it is."""


class SyncedArm(StockArm):
    """As safe against a power failure as ours, but for the file that it has removed before."""

    def _save_checkpoint_with_step(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint_with_step(*args, **kwargs)
        with open(self.last_ckpt, 'rb') as file:
            os.fsync(file.fileno())
        sync_folder(os.path.dirname(self.last_ckpt))


class OurArm(_Timed, AsyncCheckpointHook):
    """As it is."""

    @property
    def is_busy(self) -> bool:  # type: ignore[override]
        return self._saving is not None and self._saving.is_busy

    def _before_change(self) -> bool:
        start = time.perf_counter()
        is_copying = super()._before_change()
        self.in_fence += time.perf_counter() - start
        return is_copying


class ThreadArm(OurArm):
    """What ours would be if it wrote in a thread of the training, with `torch.save`."""

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        assert self._saving is not None
        assert self._saving._writer is not None
        self._saving._writer.close()
        self._saving._writer = _ThreadWriter()


class _ThreadWriter(writer.DurableWriter):
    def _new_worker(self, timeout: float, warn: Callable[[str], Any]) -> writer._Worker:
        return _Thread(self._buffer, self._snapshot, timeout, warn)


class _Thread(writer._Worker):
    def start(self) -> None:
        """Without a process."""

    def _do(
        self,
        save: writer.Save,
        trees: list,
        marker: Any,
        remove: list[str],
        after: Any,
        check: Any,
    ) -> None:
        start = time.perf_counter()
        self._snapshot.finish()
        save.staged = time.perf_counter() - start
        if check is not None:
            check(trees)
        start = time.perf_counter()
        for path, tree in zip(save.paths, trees):
            temporary = temporary_of(path)
            torch.save(tree, temporary)  # given a name, it writes without coming back to Python
            with open(temporary, 'rb') as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path))
            save.written += os.path.getsize(path)
        replace_durably(marker[0], lambda file: file.write(marker[1].encode()))
        for path in remove:
            if os.path.exists(path):
                os.remove(path)
        save.seconds = time.perf_counter() - start


# In the order in which they are shown.
ARMS: dict[str, type[Hook] | None] = {
    'no save': None,
    'stock': StockArm,
    'stock + fsync': SyncedArm,
    'ours': OurArm,
    'ours, by a thread': ThreadArm,
}


@dataclass(frozen=True)
class Shape:
    """What a training step is busy with; each takes about 100 ms on two slow cores.

    Attributes:
        work: Forward and backward.
        threads: Of torch; None leaves them as they are.
    """

    work: Callable[[], None]
    threads: int | None = None


class _Thing:
    value = 0


def _python(operations: int = 2_000_000) -> None:
    thing, table = _Thing(), {}
    for number in range(operations):
        thing.value = number
        table[number & 255] = thing.value


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
    'sleep': Shape(lambda: time.sleep(0.1)),  # as when a GPU works
    'python': Shape(_python),
    'matmul 1': Shape(_Matmul(13), threads=1),
    'matmul 2': Shape(_Matmul(26), threads=2),
}


class FakeStep(BaseModel):
    """Holds the parameters of a network, but works at something else.

    What is to be saved does change: a few parameters by the optimizer, and the statistics of a
    BatchNorm in the forward pass.

    Args:
        network: The network.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.work: Callable[[], None] = SHAPES['sleep'].work
        self.norm = torch.nn.BatchNorm1d(64)
        self._statistics = list(self.norm.buffers())
        self._trained = [one for one in network.parameters() if one.numel() <= 4096][:8]

    def init_weights(self) -> None:
        """They are what they are."""

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.work()
        for buffer in self._statistics:  # BatchNorm itself would keep all torch threads spinning
            buffer.add_(1)
        return dict(loss=sum(parameter.sum() for parameter in self._trained))


class SteppedLoop(IterBasedTrainLoop):
    """Begins when it is run, and then is taken step by step."""

    _iter: int

    def run(self) -> Any:
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        return self.runner.model

    def approach_save(self) -> None:
        """Go to where the next but `LEAD` iterations saves."""
        self._iter = (self._iter // SAVES_EVERY + 1) * SAVES_EVERY - 1 - LEAD

    def step(self) -> float:
        """One iteration; the seconds it took."""
        start = time.perf_counter()
        self.run_iter(dict(inputs=torch.zeros(1)))
        return time.perf_counter() - start

    def end(self) -> None:
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')


# Of an arm alone, when its training is shared.
_OF_ARMS = (CheckpointHook, SnapshotFence)


@dataclass
class Round:
    """Seconds of the iterations from the one that saves on, and of the parts that are known."""

    seconds: list[float]
    hook: float = 0.0
    fence: float = 0.0

    @property
    def usual(self) -> float:
        """Of an iteration."""
        return statistics.median(self.seconds)

    def lost(self, usual: float) -> dict[str, float]:
        """What all took longer than without a save, in seconds, and why."""
        lost = sum(seconds - usual for seconds in self.seconds)
        rest = lost - self.hook - self.fence
        return dict(lost=lost, hook=self.hook, fence=self.fence, interference=rest)


class Arm:
    """A real Runner that trains a fake step.

    Args:
        name: One of `ARMS`.
        width: `embed_dims` of the Swin backbone; 96 is Swin-T.
        folder: Where it may write.
        beside: An arm whose training this one shares: then they differ in their checkpoint hook
            alone, and none is luckier with where its parameters lie. Defaults to None.
    """

    def __init__(self, name: str, width: int, folder: str, beside: Arm | None = None) -> None:
        kind = ARMS[name]
        self.hook: Any = None
        if kind is not None:
            self.hook = kind(by_epoch=False, interval=SAVES_EVERY, max_keep_ckpts=2)
        if isinstance(self.hook, OurArm):
            self.hook.save_on_signal = False  # nobody wants to go on with this training
        self.work_dir = os.path.join(folder, f'{name}-{width}'.replace(' ', '_'))
        self.runner: Runner = _begun(width, self.work_dir) if beside is None else beside.runner
        self.loop: SteppedLoop = self.runner.train_loop
        # The checkpoint hook is the last one.
        others = [hook for hook in self.runner.hooks if not isinstance(hook, _OF_ARMS)]
        self._hooks = others if self.hook is None else [*others, self.hook]
        self._enter()
        if self.hook is not None:
            for stage in ('before_run', 'before_train', 'before_train_epoch'):
                getattr(self.hook, stage)(self.runner)

    @property
    def state_bytes(self) -> int:
        """Of the tensors that are saved."""
        tensors = list(self.runner.model.state_dict().values())
        for state in self.runner.optim_wrapper.optimizer.state.values():
            tensors += state.values()
        return sum(tensor.nbytes for tensor in tensors)

    def run(self, work: Callable[[], None]) -> Round:
        """Iterations around one save: until it is durable, and `AFTER` more."""
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
            raise RuntimeError(f'{path} was not saved')
        return Round(seconds, self.hook.in_hook, self.hook.in_fence)

    def close(self) -> None:
        self._enter()
        self.loop.end()

    def _enter(self) -> None:
        """From now on it is this arm's training."""
        self.runner._hooks, self.runner._work_dir = self._hooks, self.work_dir
        os.makedirs(self.work_dir, exist_ok=True)


def _begun(width: int, folder: str) -> Runner:
    """A training that saves nothing, before its first iteration."""
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
    # Lines of the log go to its file, as they do in a training, but not to the terminal.
    for handler in runner.logger.handlers:
        if hasattr(handler, 'baseFilename'):
            handler.setLevel('INFO')
    runner.logger.setLevel('INFO')
    runner.train()
    _fill(runner)
    return runner


def _fill(runner: Runner) -> None:
    """Give the optimizer its state."""
    optimizer = runner.optim_wrapper.optimizer
    for parameter in runner.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for state in optimizer.state.values():
        state['exp_avg'].normal_()
        state['exp_avg_sq'].uniform_()
