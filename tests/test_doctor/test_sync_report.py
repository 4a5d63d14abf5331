"""Synchronizations that are counted in a few iterations of a real training."""

from __future__ import annotations

import io
import logging
import os.path as osp
from pathlib import Path
from typing import ClassVar

import pytest
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS, DefaultScope
from mmengine.runner import Runner
from rich.console import Console
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mmtempo.doctor.sync_census import HostSync
from mmtempo.doctor.sync_report import (
    SyncComparison,
    SyncReport,
    compare_host_syncs,
    count_host_syncs,
)
from mmtempo.hooks import SparseLoggerHook
from mmtempo.policies.drop_in import stock
from tests.testing.mmseg_configs import pspnet


def by_kind(report: SyncReport) -> dict[str, float]:
    """Return the synchronizations of an iteration by their kind."""
    counts: dict[str, float] = {}
    for host_sync, count in report.host_syncs:
        counts[host_sync.kind] = counts.get(host_sync.kind, 0) + count / report.iterations
    return counts


def long(cfg: Config) -> Config:
    """Make a training long, with stock parts, few log lines and a save every 2 iterations."""
    stock(cfg)
    cfg.merge_from_dict({'train_cfg.max_iters': 100, 'default_hooks.logger.interval': 50})
    assert cfg.default_hooks.checkpoint.interval == 2
    cfg.launcher = 'none'
    return cfg


def test_stock_pspnet_has_fifteen_synchronizations(tmp_path: Path) -> None:
    """Five losses and accuracies; per image two copies and an index by list; four masks."""
    report = count_host_syncs(pspnet(tmp_path), iterations=2)
    assert by_kind(report) == {
        'scalar read': 5,
        'blocking copy': 4,
        'index by list': 2,
        'index by mask': 4,
    }
    assert report.per_iteration == 15
    files = {
        host_sync.where.rpartition('site-packages/')[2].split(':')[0]
        for host_sync, _ in report.host_syncs
    }
    assert 'mmengine/logging/message_hub.py' in files
    assert 'mmseg/models/losses/accuracy.py' in files
    assert not (tmp_path / 'work').exists()


def test_model_of_mmtempo_waits_only_where_stock_hooks_read_losses(tiny_cfg: Config) -> None:
    report = count_host_syncs(long(tiny_cfg), iterations=2)
    assert by_kind(report) == {'scalar read': 3}
    assert {Path(host_sync.where.split(':')[0]).name for host_sync, _ in report.host_syncs} == {
        'message_hub.py'
    }


def test_stock_clipping_reads_the_norm(tiny_cfg: Config) -> None:
    tiny_cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
    assert by_kind(count_host_syncs(long(tiny_cfg), iterations=1))['scalar read'] > 3


@HOOKS.register_module()
class PeekingHook(Hook):
    """Hook of any priority that reads a loss."""

    def __init__(self, when: str) -> None:
        self.priority = when

    def after_train_iter(
        self, runner: object, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        outputs['loss'].tolist()  # type: ignore[index]


@HOOKS.register_module()
class EarlyHook(Hook):
    """Hook that reads a parameter before any other hook."""

    priority = 'HIGHEST'

    def before_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        next(runner.model.parameters()).detach().cpu()


@HOOKS.register_module()
class EndHook(Hook):
    """Hook that keeps the runner."""

    seen: ClassVar[list[Runner]] = []

    def before_train(self, runner: Runner) -> None:
        self.seen.append(runner)


@HOOKS.register_module()
class NotingHook(Hook):
    """Hook that records the iterations, from 1, in which a census is active."""

    counted: ClassVar[list[int]] = []

    def after_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        if _get_current_dispatch_mode() is not None:
            self.counted.append(runner.iter + 1)


@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOWEST'])
def test_synchronizations_of_hooks_are_counted(tiny_cfg: Config, priority: str) -> None:
    tiny_cfg.custom_hooks = [dict(type='PeekingHook', when=priority)]
    report = count_host_syncs(long(tiny_cfg), iterations=2)
    assert by_kind(report)['copy to the host'] == 1
    assert any(__file__ in host_sync.where for host_sync, _ in report.host_syncs)


def test_iterations_with_a_log_line_are_left_out(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger.interval = 3
    cfg.custom_hooks = [dict(type='NotingHook')]
    NotingHook.counted.clear()
    report = count_host_syncs(cfg, iterations=3)
    assert report.iterations == 3
    assert by_kind(report) == {'scalar read': 3}
    # Not the first two and those with a log line; checkpoints are not written.
    assert NotingHook.counted == [4, 5, 7]


def test_epoch_based_training_is_counted(tmp_path: Path) -> None:
    cfg = pspnet(tmp_path)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.param_scheduler = []
    assert count_host_syncs(cfg, iterations=2).per_iteration == 15


def epochs(tmp_path: Path, interval: int, last: bool = True) -> list[int]:
    """Return the counted iterations of a training with epochs of four iterations."""
    cfg = pspnet(tmp_path)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.train_dataloader.dataset = dict(
        type='RepeatDataset', times=8 // images(cfg), dataset=cfg.train_dataloader.dataset
    )
    cfg.param_scheduler = []
    cfg.default_hooks.logger.update(interval=interval, ignore_last=last)
    cfg.custom_hooks = [dict(type='NotingHook')]
    NotingHook.counted.clear()
    count_host_syncs(cfg, iterations=5)
    return list(NotingHook.counted)


def images(cfg: Config) -> int:
    root = Path(cfg.train_dataloader.dataset.data_root)
    return len(list((root / 'leftImg8bit/train').rglob('*.png')))


@pytest.mark.slow
def test_iterations_within_an_epoch_decide_log_lines(tmp_path: Path) -> None:
    # Lines at the third of each four iterations, with `ignore_last=False` also at the last.
    assert epochs(tmp_path / 'a', 3) == [4, 5, 6, 8, 9]
    assert epochs(tmp_path / 'b', 3, last=False) == [5, 6, 9, 10, 13]
    # Epochs that are shorter than the interval log their last iteration.
    assert epochs(tmp_path / 'c', 50) == [3, 5, 6, 7, 9]


def test_iterations_are_counted_if_each_has_a_log_line(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger.interval = 1
    report = count_host_syncs(cfg, iterations=2)
    assert report.with_lines
    assert 'over 2 iterations with log lines' in printed_text(SyncComparison(report, report))


def test_run_leaves_no_files_and_no_global_state(tiny_cfg: Config, tmp_path: Path) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger = dict(
        type='SparseLoggerHook', interval=50, progress='bar', out_dir=str(tmp_path / 'logs')
    )
    cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'checkpoints')
    cfg.custom_hooks = [dict(type='EndHook')]
    EndHook.seen.clear()
    scopes = dict(DefaultScope._instance_dict)
    name = cfg.experiment_name
    count_host_syncs(cfg, iterations=5)
    assert DefaultScope._instance_dict == scopes
    assert not (tmp_path / 'logs').exists()
    assert not (tmp_path / 'checkpoints').exists()
    runner = EndHook.seen[0]
    assert not any(isinstance(hook, CheckpointHook) for hook in runner.hooks)
    assert not any(isinstance(h, logging.FileHandler) for h in runner.logger.handlers)
    bars = [hook._bar for hook in runner.hooks if isinstance(hook, SparseLoggerHook)]
    assert bars == [None]
    # By the same name, a later run of the config would write to the temporary folder.
    assert runner.experiment_name != name
    assert not any(key.startswith(f'{name}_') for key in MMLogger._instance_dict)


def test_first_hook_is_counted(tiny_cfg: Config) -> None:
    tiny_cfg.custom_hooks = [dict(type='EarlyHook')]
    report = count_host_syncs(long(tiny_cfg), iterations=1)
    assert by_kind(report)['copy to the host'] == 1


@pytest.mark.slow
def test_stock_mixed_precision_is_replaced_without_gpu(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16')
    found = compare_host_syncs(cfg, iterations=1)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert found.note == 'stock parts: run in float32, since AmpOptimWrapper needs a GPU'
    assert found.note in printed_text(found)
    kept = compare_host_syncs(cfg, iterations=1, keep=['optim_wrapper.type'])
    assert kept.note.startswith('stock parts and mmtempo: run in float32')


def printed_text(comparison: SyncComparison) -> str:
    output = io.StringIO()
    comparison.show(Console(file=output, width=140))
    return output.getvalue()


def test_kept_stock_hooks_still_wait(tiny_cfg: Config) -> None:
    found = compare_host_syncs(long(tiny_cfg), iterations=1, keep=['default_hooks'])
    assert by_kind(found.mmtempo) == {'scalar read': 3}


def test_paths_are_complete_on_a_narrow_terminal() -> None:
    path = osp.join('some', 'where', 'far', 'away' * 12, 'file.py:12345')
    host_syncs = [(HostSync('index by mask', 'index_put_impl', path), 2)]
    output = io.StringIO()
    SyncComparison(SyncReport(2, host_syncs), SyncReport(2, [])).show(
        Console(file=output, width=80)
    )
    rows = [line for line in output.getvalue().splitlines() if line.startswith('│')]
    assert ''.join(row.split('│')[-2].strip() for row in rows) == path


def test_run_that_is_too_short_is_an_error(tiny_cfg: Config) -> None:
    tiny_cfg.launcher = 'none'
    tiny_cfg.train_cfg.max_iters = 2
    with pytest.raises(ValueError, match='ended after 2 iterations, before one could be counted'):
        count_host_syncs(tiny_cfg, iterations=2)


def test_report_is_printed_with_short_paths(tiny_cfg: Config) -> None:
    report = count_host_syncs(long(tiny_cfg), iterations=2)
    text = printed_text(SyncComparison(report, SyncReport(2, [])))
    assert 'synchronizations: 3 per iteration with stock parts, 0 with mmtempo' in text
    assert 'mmengine/logging/message_hub.py:' in text
    assert 'site-packages' not in text


def printed(comparison: SyncComparison) -> list[str]:
    """Return the cells of each row, then the last line."""
    lines = printed_text(comparison).splitlines()
    return [' '.join(line.replace('│', ' ').split()) for line in lines if line[0] in '│h']


def test_comparison_prints_both_counts() -> None:
    ours, theirs = (
        HostSync('scalar read', 'item', 'a.py:1'),
        HostSync('index by mask', 'index', 'b.py:2'),
    )
    shared = HostSync('blocking copy', 'to the device', 'c.py:3')
    stock_report = SyncReport(2, [(theirs, 6), (shared, 2)])
    assert printed(SyncComparison(stock_report, SyncReport(2, [(shared, 1), (ours, 2)]))) == [
        '3 0 index by mask index b.py:2',
        '1 0.5 blocking copy to the device c.py:3',
        '0 1 scalar read item a.py:1',
        'host-device synchronizations: 4 per iteration with stock parts, 1.5 with mmtempo, '
        'over 2 iterations without log line or checkpoint',
    ]
    assert printed(SyncComparison(SyncReport(3, []), SyncReport(2, []))) == [
        'host-device synchronizations: 0 per iteration with stock parts, 0 with mmtempo, '
        'over 2 and 3 iterations without log line or checkpoint',
    ]


def test_comparison_does_not_change_the_config(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    before = cfg.to_dict()
    found = compare_host_syncs(cfg, iterations=2)
    assert by_kind(found.stock) == {'scalar read': 3}
    assert found.mmtempo.host_syncs == []
    assert found.mmtempo.iterations == 2
    assert cfg.to_dict() == before


def test_config_of_mmtempo_has_no_synchronization(tiny_cfg: Config) -> None:
    tiny_cfg.merge_from_dict({'train_cfg.max_iters': 100, 'default_hooks.logger.interval': 50})
    tiny_cfg.launcher = 'none'
    # The comparison replaces them by stock parts for its first run.
    assert by_kind(compare_host_syncs(tiny_cfg, iterations=1).stock) == {'scalar read': 3}
    assert count_host_syncs(tiny_cfg, iterations=2).host_syncs == []
