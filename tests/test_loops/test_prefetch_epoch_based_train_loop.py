"""Hooks that read or replace the loader of an epoch-based training, compared with stock."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from tests.testing.loader_hooks import (
    LOOPS,
    ReadsTheLoader,
    RecordsTheFirstBatch,
    of_epochs,
    result,
)
from tests.testing.toy import train


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


def test_a_loader_read_before_a_resumed_training_gives_the_epoch_of_stock(tmp_path: Path) -> None:
    """No batch was taken yet: the loader starts with the epoch of its sampler."""
    first = {}
    for arm in LOOPS:
        cfg = of_epochs(tmp_path / arm, arm, [dict(type='RecordsTheFirstBatch')])
        cfg.train_cfg.max_epochs = 1
        train(cfg.copy())
        cfg.train_cfg.max_epochs, cfg.resume = 2, True
        runner = train(cfg)
        hooks = [hook for hook in runner.hooks if isinstance(hook, RecordsTheFirstBatch)]
        first[arm] = [hook.first for hook in hooks]
        assert runner.iter == 40
    assert first['ours'] == first['stock']


@pytest.mark.parametrize(('workers', 'persistent'), [(0, False), (2, False), (2, True)])
def test_dataset_that_changes_with_the_epoch_is_seen_by_new_workers(
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
def test_loader_replaced_by_a_hook_is_used(tmp_path: Path, prefetches: bool, workers: int) -> None:
    runs = {}
    for arm in LOOPS:
        hook = dict(type='ReplacesTheLoader', epoch=1, prefetches=prefetches and arm == 'ours')
        runs[arm] = train(of_epochs(tmp_path / arm, arm, [hook], workers))
    assert runs['ours'].seen == runs['stock'].seen
    assert [batch[0] for batch in runs['ours'].seen[20:]] == 2 * list(range(5000, 5040, 2))
    assert result(runs['ours'])[1:] == result(runs['stock'])[1:]
    assert type(runs['ours'].train_dataloader) is not DataLoader or not prefetches


def test_loader_restored_by_a_hook_is_used(tmp_path: Path) -> None:
    runs = {
        arm: train(of_epochs(tmp_path / arm, arm, [dict(type='SwapsForOneEpoch')])) for arm in LOOPS
    }
    assert runs['ours'].seen == runs['stock'].seen
    assert runs['ours'].iter == 60
