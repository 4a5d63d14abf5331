"""A few iterations of a real run, and every line in them that waits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import ClassVar

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from rich.console import Console
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mmtempo.core.waits import Wait
from mmtempo.doctor.wait_report import WaitComparison, WaitReport, compare_waits, count_waits
from mmtempo.launch import resolve_config_path
from mmtempo.overlay import stock

from ..conftest import next_name
from ..test_tools.test_train import make_cityscapes


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
    # Not the first two; lines come with every third, checkpoints with every second.
    assert NotingHook.counted == [5, 7, 11]


def test_epochs(tmp_path: Path) -> None:
    cfg = pspnet(tmp_path)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.param_scheduler = []
    assert count_waits(cfg, iterations=2).per_iteration == 15


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
    assert count_waits(tiny_cfg, iterations=2).waits == []
