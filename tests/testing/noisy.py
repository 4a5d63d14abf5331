"""Toy training with random samples, and a hook that records each batch."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS

from tests.testing.toy import ToyDataset, config

SPARSE = dict(runtime_info='SparseRuntimeInfoHook', logger='SparseLoggerHook')


@DATASETS.register_module()
class NoisyDataset(ToyDataset):
    """Toy dataset with noise from the generators of Python, NumPy and torch."""

    def __getitem__(self, index: int) -> dict:
        noise = random.random() + np.random.random() + torch.rand(8)
        return dict(inputs=self.points[index] + 0.01 * noise)


@HOOKS.register_module()
class Seen(Hook):
    """Hook that writes iteration and digest of each batch before the training step."""

    def before_train(self, runner: Any) -> None:
        self._file = os.open(f'{runner.work_dir}/seen', os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        content = torch.stack(list(data_batch['inputs'])).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        os.write(self._file, f'{runner.iter} {digest}\n'.encode())


def seen(work: Path) -> dict[int, str]:
    """Return the digest of each iteration's batch; fail if a repeated iteration had another one."""
    found: dict[int, str] = {}
    for line in (work / 'seen').read_text().splitlines():
        number, digest = line.split()
        assert found.setdefault(int(number), digest) == digest, f'iteration {number}'
    return found


def noisy(work: Path, workers: int = 0, iterations: int = 30, **options: Any) -> Config:
    """Return the config of a training by iteration.

    There are 40 samples in batches of 3, so that a batch may contain samples of two epochs.
    """
    cfg = config(work, SPARSE)
    cfg.train_dataloader.update(
        batch_size=3, num_workers=workers, dataset=dict(type='NoisyDataset')
    )
    cfg.train_cfg = dict(
        type='PrefetchIterBasedTrainLoop', max_iters=iterations, val_interval=100000
    )
    cfg.default_hooks.checkpoint = dict(type='AsyncCheckpointHook', by_epoch=False, interval=7)
    cfg.custom_hooks = [dict(type='Seen')]
    cfg.merge_from_dict(options)
    return cfg


def noisy_epochs(work: Path, workers: int = 0, epochs: int = 4, **options: Any) -> Config:
    """Return the config of a training by epoch: 7 batches each, the last one smaller."""
    cfg = noisy(work, workers)
    cfg.train_dataloader.update(batch_size=6, sampler=dict(type='DefaultSampler', shuffle=True))
    cfg.train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=epochs)
    cfg.log_processor.by_epoch = True
    cfg.merge_from_dict(options)
    return cfg


@HOOKS.register_module()
class KillAt(Hook):
    """Hook that kills the process with SIGKILL, as the kernel does when memory runs out."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


@DATASETS.register_module()
class LargeSamples(ToyDataset):
    """Toy dataset with samples of 8 MiB."""

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.zeros(8 << 20, dtype=torch.uint8))


@MODELS.register_module()
class TakesAnything(BaseModel):
    """Model that ignores its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        return dict(loss=self.weight.sum())
