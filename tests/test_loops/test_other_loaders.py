"""What hooks do with the loaders of a run, compared with the stock loops."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch.utils.data import DataLoader

from mmtempo.loaders import build_prefetch_dataloader
from tests.testing.toy import STOCK, ToyDataset, by_epoch, config, train, with_evaluation

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
    """The samples of the toy, moved by the number of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=torch.full((8,), float(index + 1000 * self.epoch)))


@HOOKS.register_module()
class NotesSamples(Hook):
    """Notes the samples of each iteration, and the epochs of the files."""

    def before_run(self, runner: Any) -> None:
        runner.seen = []

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any, outputs: Any) -> None:
        runner.seen.append([int(point[0]) for point in data_batch['inputs']])


@HOOKS.register_module()
class ReadsTheLoader(Hook):
    """As mmpretrain's `PreciseBNHook`, and as a hook that shows a batch.

    Args:
        stage: The stage at which it reads.
        batches: How many batches; 0 for all.
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
class NotesTheFirst(Hook):
    """Notes the first batch before the training."""

    def before_train(self, runner: Any) -> None:
        batch = next(iter(runner.train_dataloader))
        self.first = [int(point[0]) for point in batch['inputs']]


@HOOKS.register_module()
class SetsEpochs(Hook):
    def before_train_epoch(self, runner: Any) -> None:
        runner.train_dataloader.dataset.set_epoch(runner.epoch)


@HOOKS.register_module()
class ReplacesTheLoader(Hook):
    """As mmyolo's and mmdet's hooks that switch the pipeline.

    Args:
        epoch: The epoch, from 0, from which on another loader is used.
        prefetches: Whether it is one of ours. Defaults to False.
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
class PutsALoader(Hook):
    """Puts a loader where the loop over iterations takes nothing from."""

    def before_train_epoch(self, runner: Any) -> None:
        runner.train_loop.dataloader = DataLoader(runner.train_dataloader.dataset)


@HOOKS.register_module()
class SwapsForOneEpoch(Hook):
    """Uses a stock loader in the second epoch, and the run's own before and after it."""

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


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize(
    'hook',
    [
        dict(stage='after_train_epoch'),
        dict(stage='before_train', batches=2),
        dict(stage='after_train_iter', batches=1),
        dict(stage='after_val_iter', batches=1, split='val'),
        dict(stage='before_val_epoch', split='val'),
    ],
    ids=lambda hook: f'{hook["stage"]}-{hook.get("batches", "all")}',
)
def test_hook_that_reads_a_loader_changes_nothing(tmp_path: Path, hook: dict, workers: int) -> None:
    if hook['stage'] == 'after_train_iter':
        workers = min(workers, 1)  # each look starts them anew
    plain = train(of_epochs(tmp_path / 'plain', 'ours', []))
    looking = train(
        of_epochs(tmp_path / 'looking', 'ours', [dict(type='ReadsTheLoader', **hook)], workers)
    )
    assert result(looking) == result(plain)
    assert looking.iter == 60
    (reader,) = [one for one in looking.hooks if isinstance(one, ReadsTheLoader)]
    assert set(reader.counts) == {hook.get('batches') or 20}


def test_hook_that_reads_before_a_resumed_training(tmp_path: Path) -> None:
    """No batch was taken: the loader gives the epoch of its sampler, as stock's does."""
    first = {}
    for arm in LOOPS:
        cfg = of_epochs(tmp_path / arm, arm, [dict(type='NotesTheFirst')])
        cfg.train_cfg.max_epochs = 1
        train(cfg.copy())
        cfg.train_cfg.max_epochs, cfg.resume = 2, True
        runner = train(cfg)
        first[arm] = [one.first for one in runner.hooks if isinstance(one, NotesTheFirst)]
        assert runner.iter == 40
    assert first['ours'] == first['stock']


@pytest.mark.parametrize(('workers', 'persistent'), [(0, False), (2, False), (2, True)])
def test_data_set_that_changes_with_the_epoch(
    tmp_path: Path, workers: int, persistent: bool
) -> None:
    runs = {
        arm: train(
            of_epochs(
                tmp_path / arm,
                arm,
                [dict(type='SetsEpochs')],
                workers,
                persistent_workers=persistent,
            )
        )
        for arm in LOOPS
    }
    assert runs['ours'].seen == runs['stock'].seen
    epochs = [batch[0] // 1000 for batch in runs['ours'].seen[::20]]
    assert epochs == ([0, 0, 0] if persistent else [0, 1, 2])


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('prefetches', [False, True])
def test_loader_that_a_hook_replaces(tmp_path: Path, prefetches: bool, workers: int) -> None:
    """In the middle of a training by epochs."""
    runs = {}
    for arm in LOOPS:
        hook = dict(type='ReplacesTheLoader', epoch=1, prefetches=prefetches and arm == 'ours')
        runs[arm] = train(of_epochs(tmp_path / arm, arm, [hook], workers))
    assert runs['ours'].seen == runs['stock'].seen
    assert [batch[0] for batch in runs['ours'].seen[20:]] == 2 * list(range(5000, 5040, 2))
    assert result(runs['ours'])[1:] == result(runs['stock'])[1:]
    assert type(runs['ours'].train_dataloader) is not DataLoader or not prefetches


def test_loader_that_a_hook_gives_back(tmp_path: Path) -> None:
    runs = {
        arm: train(of_epochs(tmp_path / arm, arm, [dict(type='SwapsForOneEpoch')])) for arm in LOOPS
    }
    assert runs['ours'].seen == runs['stock'].seen
    assert runs['ours'].iter == 60


@pytest.mark.parametrize('loop', [0, 2], ids=['epochs', 'iterations'])
def test_loader_that_is_built_already(tmp_path: Path, loop: int) -> None:
    cfg = of_epochs(tmp_path, 'ours', [])
    if loop:
        cfg.train_cfg = dict(type=LOOPS['ours'][loop], max_iters=50)
        cfg.default_hooks.checkpoint.update(by_epoch=False, interval=50)
    plain = train(cfg.copy())
    runner = Runner.from_cfg(cfg)
    loader = build_prefetch_dataloader(cfg.train_dataloader, seed=runner.seed)
    runner._train_dataloader = loader
    runner.train()
    assert runner.iter == plain.iter == (50 if loop else 60)
    assert runner.seen == plain.seen


def test_iterator_that_a_hook_replaces(tmp_path: Path) -> None:
    runs = {}
    for arm, loops in LOOPS.items():
        cfg = config(tmp_path / arm, STOCK)
        cfg.train_cfg = dict(type=loops[2], max_iters=12)
        cfg.train_dataloader.dataset = dict(type='Curriculum')
        cfg.custom_hooks = [dict(type='ReplacesTheLoader', epoch=0), dict(type='NotesSamples')]
        runs[arm] = train(cfg)
    assert runs['ours'].seen == runs['stock'].seen
    assert runs['ours'].seen[0] == [5000, 5001]


def test_resumes_where_a_hook_has_put_another_loader(tmp_path: Path) -> None:
    """A checkpoint of stock's loop does not say where it is; the loop's own loader knows."""
    cfg = config(tmp_path, STOCK)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=6)
    train(cfg)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=12)
    cfg.custom_hooks = [dict(type='PutsALoader'), dict(type='NotesSamples')]
    cfg.resume = True
    runner = train(cfg)
    assert runner.iter == 12
    assert runner.train_loop.dataloader_iterator.loader.place.batches == 12


def test_iterator_of_batches_cannot_stand_for_updates(tmp_path: Path) -> None:
    cfg = config(tmp_path, STOCK)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=12, count='updates')
    cfg.optim_wrapper.update(type='SparseOptimWrapper', accumulative_counts=2)
    cfg.train_dataloader.dataset = dict(type='Curriculum')
    cfg.custom_hooks = [dict(type='ReplacesTheLoader', epoch=0)]
    with pytest.raises(ValueError, match="count='updates' needs the loop's own"):
        train(cfg)


def test_test_loop_counts_each_sample_once_while_a_hook_looks(tmp_path: Path) -> None:
    seen = {}
    for arm, loops in LOOPS.items():
        cfg = with_evaluation(config(tmp_path / arm, STOCK))
        cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
        cfg.test_cfg = dict(type=loops[3])
        cfg.custom_hooks = [
            dict(type='ReadsTheLoader', stage='after_test_iter', batches=1, split='test')
        ]
        seen[arm] = Runner.from_cfg(cfg).test()
    assert seen['ours'] == seen['stock'] == dict(seen=40.0)
