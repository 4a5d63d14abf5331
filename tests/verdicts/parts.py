"""Dataset, model, hooks and backend of the graded trainings; waits stand for a device's work."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, VISBACKENDS
from mmengine.visualization import LocalVisBackend

from tests.verdicts.causes import CAUSES, burn, wait
from tests.verdicts.truth import truth


@DATASETS.register_module()
class GradedDataset(torch.utils.data.Dataset):
    """Dataset whose samples take the time of a network disk, of decoding, or of both.

    Args:
        count: Number of samples. Defaults to 400.
        waits: Seconds that each sample waits. Defaults to 0.
        burns: CPU seconds of each sample. Defaults to 0.
        slow: Indices of slow samples. Defaults to ().
        slow_waits: Seconds that a slow sample waits besides. Defaults to 0.
        sizes: Lengths of samples, taken in turn. Defaults to (8,).
        once: File that the first slow sample creates, so that only one is slow. Defaults to ''.
    """

    def __init__(
        self,
        count: int = 400,
        waits: float = 0.0,
        burns: float = 0.0,
        slow: tuple = (),
        slow_waits: float = 0.0,
        sizes: tuple = (8,),
        once: str = '',
    ) -> None:
        self.count, self.waits, self.burns = count, waits, burns
        self.slow, self.slow_waits, self.sizes, self.once = slow, slow_waits, sizes, once

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        if self.waits:
            time.sleep(self.waits)
        if self.burns:
            burn(self.burns)
        if index in self.slow and self._is_slow_now():
            time.sleep(self.slow_waits)
        return dict(inputs=torch.full((self.sizes[index % len(self.sizes)],), index / self.count))

    def _is_slow_now(self) -> bool:
        if not self.once:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@MODELS.register_module()
class GradedModel(BaseModel):
    """Model that waits or computes, and in which a cause may work.

    Args:
        waits: Seconds that each forward pass waits. Defaults to 0.015.
        burns: CPU seconds of each forward pass. Defaults to 0.
        ballast: Megabytes of frozen weights, for the size of checkpoints. Defaults to 0.
        width: Width of a layer that is computed. Defaults to 8.
        cause: `type` and arguments of a cause. Defaults to None.
    """

    def __init__(
        self,
        waits: float = 0.015,
        burns: float = 0.0,
        ballast: int = 0,
        width: int = 8,
        cause: dict | None = None,
    ) -> None:
        super().__init__()
        self.waits, self.burns, self.seen = waits, burns, 0
        self.net = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Linear(width, width))
        if ballast:
            frozen = torch.rand(ballast * 250_000)
            self.ballast = torch.nn.Parameter(frozen, requires_grad=False)
        arguments = dict(cause or {})
        self.cause = CAUSES[arguments.pop('type')](**arguments) if arguments else None

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        batch = inputs if isinstance(inputs, torch.Tensor) else torch.stack(list(inputs))
        if mode == 'loss':
            self.seen += 1
            wait(self.waits)
            if self.burns:
                burn(self.burns)
            if self.cause is not None:
                truth.lost['cause'] += self.cause(self.seen, batch)
        out = self.net(batch.float().flatten(1).mean(1, keepdim=True))
        return dict(loss=out.square().mean()) if mode == 'loss' else [dict(out=one) for one in out]

    def val_step(self, data: dict) -> list:
        return self(**self.data_preprocessor(data), mode='predict')


@HOOKS.register_module()
class PeriodicHook(Hook):
    """A user's hook that works after each N-th iteration."""

    def __init__(self, every: int, seconds: float) -> None:
        self.every, self.seconds = every, seconds

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if self.every_n_train_iters(runner, self.every):
            truth.lost['hook'] += wait(self.seconds)


@HOOKS.register_module()
class ManyObjects(Hook):
    """A user's hook that keeps objects, which each garbage collection visits."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.began = 0.0

    def before_train(self, runner: Any) -> None:
        self.objects: list[list] = [[] for _ in range(self.count)]
        gc.callbacks.append(self._note)

    def after_train(self, runner: Any) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict) -> None:
        if phase == 'start':
            self.began = time.perf_counter()
        else:
            truth.lost['gc'] += time.perf_counter() - self.began


@HOOKS.register_module()
class FreezeGarbage(Hook):
    """A user's hook that excludes what was built so far from garbage collections."""

    def before_run(self, runner: Any) -> None:
        gc.collect()
        gc.freeze()


# Starts processes that compute for a minute at most, prints their ids and exits: they are then no
# children of the training.
BURN = 'import time; end = time.time() + 60\nwhile time.time() < end: pass'
START = f"""
import subprocess, sys
for _ in range(int(sys.argv[1])):
    print(subprocess.Popen([sys.executable, '-c', {BURN!r}], stdout=subprocess.DEVNULL).pid)
"""


@HOOKS.register_module()
class Neighbors(Hook):
    """Starts other processes that compute, and ends them with the training."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.others: list[int] = []

    def before_train(self, runner: Any) -> None:
        command = [sys.executable, '-c', START, str(self.count)]
        self.others = [int(pid) for pid in subprocess.check_output(command).split()]
        atexit.register(self.after_train, runner=None)

    def after_train(self, runner: Any) -> None:
        for pid in self.others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.others = []


@HOOKS.register_module()
class InterruptAt(Hook):
    """Presses Ctrl-C."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGINT)


@VISBACKENDS.register_module()
class SlowVisBackend(LocalVisBackend):
    """A backend that sends each row over a network."""

    seconds = 0.015

    def add_scalars(self, *args: Any, **kwargs: Any) -> None:
        truth.lost['visualizer'] += wait(self.seconds)
        super().add_scalars(*args, **kwargs)
