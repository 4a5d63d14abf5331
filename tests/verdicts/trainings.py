"""What a case of the graded set consists of, and the config of a short training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from tests.testing.toy import SPARSE, by_epoch, config, with_evaluation
from tests.verdicts.truth import Truth

HEALTHY = 'healthy'


@dataclass(frozen=True)
class Case:
    """A training with one known cause, or a healthy one.

    Attributes:
        name: Name of the case.
        key: Expected key of the first finding.
        about: What the training does, in a few words.
        config: Returns the config for a work dir.
        true_seconds: Returns the seconds lost from what the training has measured; 0 if healthy.
        fix: Key of the override that must be printed and that removes the finding; '' for none.
        first: Options of a training that runs before, which this one resumes; None for none.
        ranks: Number of processes. Defaults to 1.
        readings: Kind of made readings; '' for those of this machine.
        edit: Changes of the summary that stand for a device; None for none.
    """

    name: str
    key: str
    about: str
    config: Callable[[Path], Config]
    true_seconds: Callable[[Truth], float] = field(default=lambda truth: 0.0)
    fix: str = ''
    first: dict[str, Any] | None = None
    ranks: int = 1
    readings: str = ''
    edit: Callable[[dict], None] | None = None

    @property
    def is_healthy(self) -> bool:
        return self.key == HEALTHY


def training(work: Path, iterations: int = 300, hooks: Any = (), **options: Any) -> Config:
    """Return the config of a training with the loops and hooks of mmtempo.

    Args:
        work: Work dir.
        iterations: Number of iterations. Defaults to 300.
        hooks: Custom hooks. Defaults to ().
        options: Overrides, with `__` for the dots of a key.
    """
    cfg = config(work, SPARSE)
    cfg.model = dict(type='GradedModel')
    cfg.train_cfg.update(type='PrefetchIterBasedTrainLoop', max_iters=iterations)
    cfg.train_dataloader.update(
        batch_size=4, num_workers=2, persistent_workers=True, dataset=dict(type='GradedDataset')
    )
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    cfg.default_hooks.checkpoint.update(
        type='AsyncCheckpointHook', interval=100_000, save_last=False
    )
    cfg.custom_hooks = [dict(type='GradedFirst'), dict(type='GradedLast'), *hooks]
    cfg.launcher = 'none'
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return cfg


def in_epochs(work: Path, length: int, epochs: int, **options: Any) -> Config:
    """Return the config of a training by epoch.

    Args:
        work: Work dir.
        length: Iterations of an epoch.
        epochs: Number of epochs.
        options: As of `training`.
    """
    cfg = by_epoch(training(work), epochs)
    cfg.train_cfg.type = 'PrefetchEpochBasedTrainLoop'
    cfg.train_dataloader.dataset.count = 4 * length
    cfg.default_hooks.checkpoint.interval = 100_000
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return cfg


def evaluated(cfg: Config, interval: int, count: int, waits: float) -> Config:
    """Add evaluations of `count` samples, each of which takes `waits` seconds to read."""
    cfg = with_evaluation(cfg)
    cfg.val_cfg.type = 'PrefetchValLoop'
    cfg.train_cfg.val_interval = interval
    cfg.val_dataloader.dataset = dict(type='GradedDataset', count=count, waits=waits)
    return cfg


def with_stock_parts(cfg: Config) -> Config:
    """Use the loops, hooks and loaders of mmengine, and of ours the monitor only."""
    cfg.train_cfg.type = cfg.train_cfg.type.removeprefix('Prefetch')
    cfg.default_hooks.runtime_info.type = 'RuntimeInfoHook'
    cfg.default_hooks.logger.type = 'LoggerHook'
    cfg.default_hooks.checkpoint.type = 'CheckpointHook'
    return cfg
