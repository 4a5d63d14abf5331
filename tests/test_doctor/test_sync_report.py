"""A few iterations of a real run, and every line in them that waits."""

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

from mmtempo.cli.config import resolve_config_path
from mmtempo.doctor.sync_census import Wait
from mmtempo.doctor.sync_report import WaitComparison, WaitReport, compare_waits, count_waits
from mmtempo.hooks import SparseLoggerHook
from mmtempo.policies.drop_in import stock
from tests.test_tools.test_train import make_cityscapes
from tests.testing.common import next_name


def by_kind(report: WaitReport) -> dict[str, float]:
    found: dict[str, float] = {}
    for wait, count in report.waits:
        found[wait.kind] = found.get(wait.kind, 0) + count / report.iterations
    return found


def long(cfg: Config) -> Config:
    """Long enough, of stock parts, and with few log lines; a checkpoint in every second one."""
    stock(cfg)
    cfg.merge_from_dict({'train_cfg.max_iters': 100, 'default_hooks.logger.interval': 50})
    assert cfg.default_hooks.checkpoint.interval == 2
    cfg.launcher = 'none'
    return cfg


def pspnet(tmp_path: Path) -> Config:
    """mmseg's own, on little data."""
    cfg = Config.fromfile(
        resolve_config_path('mmseg::pspnet/pspnet_r18-d8_4xb2-80k_cityscapes-512x1024')
    )
    root = str(make_cityscapes(tmp_path / 'cityscapes'))
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = root
    pipeline = cfg.train_dataloader.dataset.pipeline
    pipeline[2].scale, pipeline[3].crop_size = (128, 64), (64, 64)
    cfg.model.data_preprocessor.size = (64, 64)
    cfg.model.pretrained = None
    cfg.model.backbone.norm_cfg.type = 'BN'
    cfg.work_dir, cfg.experiment_name = str(tmp_path / 'work'), next_name()
    cfg.launcher = 'none'
    return cfg


def test_stock_pspnet_waits_as_is_known(tmp_path: Path) -> None:
    """Batch 2: five losses and accuracies; per image two copies and a list as index; four masks."""
    report = count_waits(pspnet(tmp_path), iterations=2)
    assert by_kind(report) == {
        'scalar read': 5,
        'blocking copy': 4,
        'index by list': 2,
        'index by mask': 4,
    }
    assert report.per_iteration == 15
    places = {wait.where.rpartition('site-packages/')[2].split(':')[0] for wait, _ in report.waits}
    assert 'mmengine/logging/message_hub.py' in places
    assert 'mmseg/models/losses/accuracy.py' in places
    assert not (tmp_path / 'work').exists()


def test_our_model_waits_only_where_stock_hooks_read_losses(tiny_cfg: Config) -> None:
    report = count_waits(long(tiny_cfg), iterations=2)
    assert by_kind(report) == {'scalar read': 3}
    assert {Path(wait.where.split(':')[0]).name for wait, _ in report.waits} == {'message_hub.py'}


def test_clipping_reads_the_norm(tiny_cfg: Config) -> None:
    tiny_cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
    assert by_kind(count_waits(long(tiny_cfg), iterations=1))['scalar read'] > 3


@HOOKS.register_module()
class PeekingHook(Hook):
    """Reads a loss; of any priority."""

    def __init__(self, when: str) -> None:
        self.priority = when

    def after_train_iter(
        self, runner: object, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        outputs['loss'].tolist()  # type: ignore[index]


@HOOKS.register_module()
class EarlyHook(Hook):
    """Reads a parameter before any other hook."""

    priority = 'HIGHEST'

    def before_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        next(runner.model.parameters()).detach().cpu()


@HOOKS.register_module()
class EndHook(Hook):
    """Keeps the runner."""

    seen: ClassVar[list[Runner]] = []

    def before_train(self, runner: Runner) -> None:
        self.seen.append(runner)


@HOOKS.register_module()
class NotingHook(Hook):
    """Notes in which iterations, counted from one, a census is under way."""

    counted: ClassVar[list[int]] = []

    def after_train_iter(self, runner: Runner, *args: object, **kwargs: object) -> None:
        if _get_current_dispatch_mode() is not None:
            self.counted.append(runner.iter + 1)


@pytest.mark.parametrize('priority', ['VERY_HIGH', 'LOWEST'])
def test_hooks_are_looked_into(tiny_cfg: Config, priority: str) -> None:
    tiny_cfg.custom_hooks = [dict(type='PeekingHook', when=priority)]
    report = count_waits(long(tiny_cfg), iterations=2)
    assert by_kind(report)['copy to the host'] == 1
    assert any(__file__ in wait.where for wait, _ in report.waits)


def test_iterations_with_a_log_line_are_left_out(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger.interval = 3
    cfg.custom_hooks = [dict(type='NotingHook')]
    NotingHook.counted.clear()
    report = count_waits(cfg, iterations=3)
    assert report.iterations == 3
    assert by_kind(report) == {'scalar read': 3}
    # Not the first two; lines come with every third, and checkpoints are not written.
    assert NotingHook.counted == [4, 5, 7]


def test_epochs(tmp_path: Path) -> None:
    cfg = pspnet(tmp_path)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.param_scheduler = []
    assert count_waits(cfg, iterations=2).per_iteration == 15


def epochs(tmp_path: Path, interval: int, last: bool = True) -> list[int]:
    """Counted iterations of epochs that are four long."""
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
    count_waits(cfg, iterations=5)
    return list(NotingHook.counted)


def images(cfg: Config) -> int:
    root = Path(cfg.train_dataloader.dataset.data_root)
    return len(list((root / 'leftImg8bit/train').rglob('*.png')))


@pytest.mark.slow
def test_epochs_log_by_their_own_iterations(tmp_path: Path) -> None:
    # The third of each four, and with `ignore_last=False` the last.
    assert epochs(tmp_path / 'a', 3) == [4, 5, 6, 8, 9]
    assert epochs(tmp_path / 'b', 3, last=False) == [5, 6, 9, 10, 13]
    # Epochs that are shorter than the interval log at their end.
    assert epochs(tmp_path / 'c', 50) == [3, 5, 6, 7, 9]


def test_where_each_iteration_logs_they_count(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger.interval = 1
    report = count_waits(cfg, iterations=2)
    assert report.with_lines
    output = io.StringIO()
    report.show(Console(file=output, width=140))
    assert 'over 2 iterations, log lines included' in output.getvalue()


def test_nothing_stays_behind(tiny_cfg: Config, tmp_path: Path) -> None:
    cfg = long(tiny_cfg)
    cfg.default_hooks.logger = dict(
        type='SparseLoggerHook', interval=50, progress='bar', out_dir=str(tmp_path / 'logs')
    )
    cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'checkpoints')
    cfg.custom_hooks = [dict(type='EndHook')]
    EndHook.seen.clear()
    scopes = dict(DefaultScope._instance_dict)
    name = cfg.experiment_name
    count_waits(cfg, iterations=5)
    assert DefaultScope._instance_dict == scopes
    assert not (tmp_path / 'logs').exists()
    assert not (tmp_path / 'checkpoints').exists()
    runner = EndHook.seen[0]
    assert not any(isinstance(hook, CheckpointHook) for hook in runner.hooks)
    assert not any(isinstance(h, logging.FileHandler) for h in runner.logger.handlers)
    bars = [hook._bar for hook in runner.hooks if isinstance(hook, SparseLoggerHook)]
    assert bars == [None]
    # A logger of that name would go on writing to this folder in the config's own run.
    assert runner.experiment_name != name
    assert not any(key.startswith(f'{name}_') for key in MMLogger._instance_dict)


def test_hooks_that_come_first_are_seen(tiny_cfg: Config) -> None:
    tiny_cfg.custom_hooks = [dict(type='EarlyHook')]
    report = count_waits(long(tiny_cfg), iterations=1)
    assert by_kind(report)['copy to the host'] == 1


@pytest.mark.slow
def test_mixed_precision_without_gpu(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16')
    found = compare_waits(cfg, iterations=1)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert found.note == 'with stock parts in float32: AmpOptimWrapper needs a GPU'
    assert found.note in printed_text(found)
    kept = compare_waits(cfg, iterations=1, keep=['optim_wrapper.type'])
    assert kept.note.startswith("with stock parts and mmtempo's in float32")


def printed_text(comparison: WaitComparison) -> str:
    output = io.StringIO()
    comparison.show(Console(file=output, width=140))
    return output.getvalue()


def test_what_is_kept_waits_on(tiny_cfg: Config) -> None:
    found = compare_waits(long(tiny_cfg), iterations=1, keep=['default_hooks'])
    assert by_kind(found.mmtempo) == {'scalar read': 3}


def test_places_are_whole_on_a_narrow_terminal() -> None:
    place = osp.join('some', 'where', 'far', 'away' * 12, 'file.py:12345')
    waits = [(Wait('index by mask', 'index_put_impl', place), 2)]
    output = io.StringIO()
    WaitComparison(WaitReport(2, waits), WaitReport(2, [])).show(Console(file=output, width=80))
    rows = [line for line in output.getvalue().splitlines() if line.startswith('│')]
    assert ''.join(row.split('│')[-2].strip() for row in rows) == place


def test_a_run_that_is_too_short_is_said_so(tiny_cfg: Config) -> None:
    tiny_cfg.launcher = 'none'
    tiny_cfg.train_cfg.max_iters = 2
    with pytest.raises(ValueError, match='ended after 2 iterations, before one could be looked at'):
        count_waits(tiny_cfg, iterations=2)


def test_what_is_printed(tiny_cfg: Config) -> None:
    report = count_waits(long(tiny_cfg), iterations=2)
    output = io.StringIO()
    report.show(Console(file=output, width=140))
    assert '3 waits an iteration, over 2 iterations' in output.getvalue()
    assert 'mmengine/logging/message_hub.py:' in output.getvalue()
    assert 'site-packages' not in output.getvalue()
    output = io.StringIO()
    WaitReport(2, []).show(Console(file=output, width=140))
    assert output.getvalue().startswith('0 waits an iteration')


def printed(comparison: WaitComparison) -> list[str]:
    """Cells of each row, then the last line."""
    output = io.StringIO()
    comparison.show(Console(file=output, width=140))
    lines = output.getvalue().splitlines()
    return [' '.join(line.replace('│', ' ').split()) for line in lines if line[0] in '│0123456789']


def test_both_columns() -> None:
    ours, theirs = Wait('scalar read', 'item', 'a.py:1'), Wait('index by mask', 'index', 'b.py:2')
    shared = Wait('blocking copy', 'to the device', 'c.py:3')
    stock_waits = WaitReport(2, [(theirs, 6), (shared, 2)])
    assert printed(WaitComparison(stock_waits, WaitReport(2, [(shared, 1), (ours, 2)]))) == [
        '3 0 index by mask index b.py:2',
        '1 0.5 blocking copy to the device c.py:3',
        '0 1 scalar read item a.py:1',
        "4 waits an iteration with stock parts, 1.5 with mmtempo's, "
        'over 2 iterations without log line or checkpoint',
    ]
    assert printed(WaitComparison(WaitReport(3, []), WaitReport(2, []))) == [
        "0 waits an iteration with stock parts, 0 with mmtempo's, "
        'over 2 and 3 iterations without log line or checkpoint',
    ]


def test_compares_one_config_with_itself(tiny_cfg: Config) -> None:
    cfg = long(tiny_cfg)
    before = cfg.to_dict()
    found = compare_waits(cfg, iterations=2)
    assert by_kind(found.stock) == {'scalar read': 3}
    assert found.mmtempo.waits == []
    assert found.mmtempo.iterations == 2
    assert cfg.to_dict() == before


def test_what_our_models_come_with_waits_for_nothing(tiny_cfg: Config) -> None:
    tiny_cfg.merge_from_dict({'train_cfg.max_iters': 100, 'default_hooks.logger.interval': 50})
    tiny_cfg.launcher = 'none'
    # And its stock parts come from the comparison.
    assert by_kind(compare_waits(tiny_cfg, iterations=1).stock) == {'scalar read': 3}
    assert count_waits(tiny_cfg, iterations=2).waits == []
