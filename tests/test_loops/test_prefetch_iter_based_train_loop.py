"""Hooks that replace the iterator of an iteration-based training, compared with stock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.loader_hooks import LOOPS
from tests.testing.toy import STOCK, config, train


def test_iterator_replaced_by_a_hook_is_used(tmp_path: Path) -> None:
    runs = {}
    for arm, loops in LOOPS.items():
        cfg = config(tmp_path / arm, STOCK)
        cfg.train_cfg = dict(type=loops[2], max_iters=12)
        cfg.train_dataloader.dataset = dict(type='Curriculum')
        cfg.custom_hooks = [dict(type='ReplacesTheLoader', epoch=0), dict(type='NotesSamples')]
        runs[arm] = train(cfg)
    assert runs['ours'].seen == runs['stock'].seen
    assert runs['ours'].seen[0] == [5000, 5001]


def test_iterator_replaced_by_a_hook_is_refused_for_updates(tmp_path: Path) -> None:
    cfg = config(tmp_path, STOCK)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=12, count='updates')
    cfg.optim_wrapper.update(type='SparseOptimWrapper', accumulative_counts=2)
    cfg.train_dataloader.dataset = dict(type='Curriculum')
    cfg.custom_hooks = [dict(type='ReplacesTheLoader', epoch=0)]
    with pytest.raises(ValueError, match="count='updates' needs the loop's own"):
        train(cfg)


def test_a_replaced_dataloader_attribute_does_not_change_the_resumed_position(
    tmp_path: Path,
) -> None:
    """A checkpoint of the stock loop has no position; the loop's own loader is counted."""
    cfg = config(tmp_path, STOCK)
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=6)
    train(cfg)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=12)
    cfg.custom_hooks = [dict(type='ReplacesTheAttribute'), dict(type='NotesSamples')]
    cfg.resume = True
    runner = train(cfg)
    assert runner.iter == 12
    assert runner.train_loop.dataloader_iterator.loader.place.batches == 12
