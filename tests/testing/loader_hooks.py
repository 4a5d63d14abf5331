"""Hooks that read, change or replace the loaders of a run, and trainings with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch.utils.data import DataLoader

from mmtempo.loaders import build_prefetch_dataloader
from tests.testing.toy import STOCK, ToyDataset, by_epoch, config, with_evaluation

LOOPS = {
    'stock': ('EpochBasedTrainLoop', 'ValLoop', 'IterBasedTrainLoop', 'TestLoop'),
    'ours': (
        'PrefetchEpochBasedTrainLoop',
        'PrefetchValLoop',
        'PrefetchIterBasedTrainLoop',
        'PrefetchTestLoop',
    ),
}


@DATASETS.register_module()
class Curriculum(ToyDataset):
    """A dataset whose samples depend on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.full((8,), float(index + 1000 * self.epoch)))


@HOOKS.register_module()
class NotesSamples(Hook):
    """Records the samples of each iteration."""

    def before_run(self, runner: Any) -> None:
        runner.seen = []

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any, outputs: Any) -> None:
        runner.seen.append([int(point[0]) for point in data_batch['inputs']])


@HOOKS.register_module()
class RecordsTheFirstBatch(Hook):
    """Records the first batch of the loader before the training."""

    def before_train(self, runner: Any) -> None:
        batch = next(iter(runner.train_dataloader))
        self.first = [int(point[0]) for point in batch['inputs']]


@HOOKS.register_module()
class ReplacesTheAttribute(Hook):
    """Replaces `dataloader` of a loop over iterations, which takes its batches from elsewhere."""

    def before_train_epoch(self, runner: Any) -> None:
        runner.train_loop.dataloader = DataLoader(runner.train_dataloader.dataset)


@HOOKS.register_module()
class ReadsTheLoader(Hook):
    """Reads a dataloader, as mmpretrain's `PreciseBNHook` and hooks that show a batch do.

    Args:
        stage: Name of the hook method in which it reads.
        batches: Number of batches; 0 for all. Defaults to 0.
        split: The dataloader: 'train', 'val' or 'test'. Defaults to 'train'.
    """

    def __init__(self, stage: str, batches: int = 0, split: str = 'train') -> None:
        self.batches, self.split, self.counts = batches, split, []
        setattr(self, stage, self._read)

    def _read(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        loader = getattr(runner, f'{self.split}_dataloader')
        if self.batches:
            iterator = iter(loader)
            self.counts.append(len([next(iterator) for _ in range(self.batches)]))
        else:
            self.counts.append(len(list(loader)))


@HOOKS.register_module()
class SetsEpochs(Hook):
    def before_train_epoch(self, runner: Any) -> None:
        runner.train_dataloader.dataset.set_epoch(runner.epoch)


@HOOKS.register_module()
class ReplacesTheLoader(Hook):
    """Replaces the dataloader, as hooks of mmyolo and mmdet that switch the pipeline do.

    Args:
        epoch: Index of the first epoch with the other loader.
        prefetches: Whether that is a `PrefetchDataLoader`. Defaults to False.
    """

    def __init__(self, epoch: int, prefetches: bool = False) -> None:
        self.epoch, self.prefetches = epoch, prefetches

    def before_train_epoch(self, runner: Any) -> None:
        if runner.epoch != self.epoch:
            return
        cfg = copy.deepcopy(runner.cfg.train_dataloader)
        cfg.dataset = dict(type='Curriculum')
        cfg.sampler = dict(type='DefaultSampler', shuffle=False)
        if self.prefetches:
            loader = build_prefetch_dataloader(cfg, seed=runner.seed)
        else:
            loader = Runner.build_dataloader(cfg)
        loader.dataset.set_epoch(5)
        runner.train_loop.dataloader = loader
        if hasattr(runner.train_loop, 'dataloader_iterator'):
            runner.train_loop.dataloader_iterator = _InfiniteDataloaderIterator(loader)


@HOOKS.register_module()
class SwapsForOneEpoch(Hook):
    """Uses a stock loader in the second epoch, and restores the run's loader afterwards."""

    def before_train_epoch(self, runner: Any) -> None:
        if runner.epoch == 1:
            self.before = runner.train_loop.dataloader
            runner.train_loop.dataloader = Runner.build_dataloader(
                copy.deepcopy(runner.cfg.train_dataloader), seed=runner.seed
            )
            runner.train_loop.dataloader.sampler.set_epoch(1)
        elif runner.epoch == 2:
            runner.train_loop.dataloader = self.before
            self.before.sampler.set_epoch(2)


def of_epochs(work: Path, arm: str, hooks: list, workers: int = 0, **loader: Any) -> Config:
    cfg = with_evaluation(by_epoch(config(work, STOCK), epochs=3))
    cfg.train_cfg.type, cfg.val_cfg.type = LOOPS[arm][:2]
    cfg.default_hooks.checkpoint.interval = 1
    cfg.train_dataloader.update(num_workers=workers, dataset=dict(type='Curriculum'), **loader)
    cfg.custom_hooks = [*hooks, dict(type='NotesSamples')]
    return cfg


def result(runner: Runner) -> tuple[list, int, int, list[str], list[float]]:
    files = sorted(path.name for path in Path(runner.work_dir).glob('*.pth'))
    scores = runner.message_hub.get_scalar('val/seen')._log_history.tolist()
    return runner.seen, runner.iter, runner.epoch, files, scores
