"""Settings are read from the runner, with intervals in iterations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import DATASETS
from mmengine.runner import Runner

from mmtempo.datasets import CachedDataset
from mmtempo.monitor.run_settings import batches_per_update, files_of, setting_of, shape_of
from mmtempo.report.verdict import judge
from tests.testing.common import next_name
from tests.testing.summaries import summary
from tests.testing.toy import SPARSE, STOCK, ToyDataset, by_epoch, config, with_evaluation

EPOCH = 20  # iterations of an epoch of the toy dataset


def found_in(cfg: Config) -> dict[str, Any]:
    """Return the settings of a runner that is about to train."""
    cfg.experiment_name, cfg.visualizer.name = next_name(), next_name()
    runner = Runner.from_cfg(cfg)
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    if runner._val_loop is not None:
        runner._val_loop = runner.build_val_loop(runner._val_loop)
    return setting_of(runner)


def test_iteration_based_training(tmp_path: Path) -> None:
    cfg = with_evaluation(config(tmp_path, SPARSE))
    cfg.train_cfg.update(max_iters=100, val_interval=30)
    found = found_in(cfg)
    expected = dict(
        loop='IterBasedTrainLoop', train_cfg_has_type=True, by_epoch=False, batch_size=2, world=1,
        local_world=1, accumulation=1, effective_batch=2, num_workers=0, max_iters=100,
        log_interval=10, val_interval=30, checkpoint_interval=250, checkpoint_by_epoch=False,
        default_hooks=dict(
            runtime_info='SparseRuntimeInfoHook', logger='SparseLoggerHook',
            checkpoint='CheckpointHook',
        ),
    )  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert {'IterBasedTrainLoop', 'ValLoop', 'OptimWrapper', 'IterTimerHook'} <= set(found['parts'])


@pytest.mark.parametrize('has_type', [True, False])
def test_epoch_based_training(has_type: bool, tmp_path: Path) -> None:
    cfg = by_epoch(with_evaluation(config(tmp_path, STOCK)), epochs=3)
    if not has_type:
        del cfg.train_cfg['type']
        cfg.train_cfg.by_epoch = True
    found = found_in(cfg)
    assert (found['loop'], found['train_cfg_has_type']) == ('EpochBasedTrainLoop', has_type)
    assert (found['by_epoch'], found['epoch_length']) == (True, EPOCH)
    assert found['val_interval'] == EPOCH
    assert (found['checkpoint_interval'], found['checkpoint_by_epoch']) == (10 * EPOCH, True)


def test_type_override_fails_for_a_train_cfg_without_type(tmp_path: Path) -> None:
    """Therefore the verdict gives no such override; see `test_data.py` of the verdict."""
    cfg = by_epoch(config(tmp_path, STOCK), epochs=3)
    del cfg.train_cfg['type']
    cfg.train_cfg.by_epoch = True
    setting = found_in(cfg)
    verdict = judge(summary(phases=dict(data=100.0), setting=setting))
    options = [change.override.partition('=') for change in verdict.change]
    cfg.merge_from_dict({key: value for key, _, value in options if key.startswith('train_cfg')})
    assert found_in(cfg)['loop'] == 'EpochBasedTrainLoop'
    cfg.merge_from_dict({'train_cfg.type': 'PrefetchEpochBasedTrainLoop'})
    with pytest.raises(RuntimeError, match='Only one of'):
        found_in(cfg)


def test_checkpoint_hook_may_count_iterations_in_an_epoch_loop(tmp_path: Path) -> None:
    """As in configs with epochs that inherit from `_base_/default_runtime.py`."""
    cfg = by_epoch(config(tmp_path, STOCK), epochs=3)
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=30)
    found = found_in(cfg)
    assert (found['checkpoint_interval'], found['checkpoint_by_epoch']) == (30, False)


def test_checkpoint_hook_by_epoch_in_a_loop_without_epochs(tmp_path: Path) -> None:
    """It saves at the end only, so stalls cannot have its interval."""
    cfg = config(tmp_path, STOCK)
    cfg.default_hooks.checkpoint.update(by_epoch=True, interval=1)
    found = found_in(cfg)
    assert (found['checkpoint_interval'], found['checkpoint_by_epoch']) == (None, True)


def test_default_hooks_absent_from_the_config(tmp_path: Path) -> None:
    cfg = config(tmp_path, STOCK)
    del cfg.default_hooks['checkpoint']
    cfg.default_hooks.timer = None
    cfg.default_hooks.logger.type = 'mmengine.LoggerHook'
    found = found_in(cfg)
    assert found['default_hooks'] == dict(
        runtime_info='RuntimeInfoHook', logger='LoggerHook', timer=None
    )
    assert 'CheckpointHook' in found['parts']
    cfg = config(tmp_path, STOCK)
    cfg.pop('default_hooks')
    assert found_in(cfg)['default_hooks'] == {}


def test_default_hooks_given_by_class(tmp_path: Path) -> None:
    runner = Runner.from_cfg(config(tmp_path, STOCK))
    hooks = dict(checkpoint=dict(type=CheckpointHook, interval=5), own=CheckpointHook(interval=5))
    runner.cfg = SimpleNamespace(get=dict(default_hooks=hooks).get, filename=None)
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    found = setting_of(runner)
    assert found['default_hooks'] == dict(checkpoint='CheckpointHook', own='CheckpointHook')
    assert found['train_cfg_has_type'] is False


@DATASETS.register_module()
class Images(ToyDataset):
    """Dataset with a pipeline over image files, and statistics that are not those of a cache."""

    stats = dict(mean=0.5)

    def __init__(self, file: str) -> None:
        super().__init__()
        self.pipeline = SimpleNamespace(transforms=[CheckpointHook(), SimpleNamespace()])
        self.file = file

    def get_data_info(self, index: int) -> dict:
        return dict(img_path=self.file)


@DATASETS.register_module()
class Wraps(ToyDataset):
    """Dataset around another one."""

    def __init__(self, dataset: dict) -> None:
        super().__init__()
        self.dataset = DATASETS.build(dataset)


@DATASETS.register_module()
class Joins(ToyDataset):
    """Dataset of several others."""

    def __init__(self, datasets: list[dict]) -> None:
        super().__init__()
        self.datasets = [DATASETS.build(one) for one in datasets]


@DATASETS.register_module()
class Endless(ToyDataset):
    """Dataset that seems to be within itself, as a proxy that forwards attributes."""

    @property
    def dataset(self) -> Endless:
        return self


@DATASETS.register_module()
class CachedImages(CachedDataset):
    """Cache of such a dataset."""

    def __init__(self, file: str) -> None:
        self.dataset, self._installed = Images(file), True

    def full_init(self) -> None:
        """Do nothing."""

    metainfo: dict = {}


IMAGES = dict(type='Images', file='a/B.JPG')
CACHED = dict(type='CachedImages', file='a/B.JPG')
NAMES = ['CheckpointHook', 'SimpleNamespace']


@pytest.mark.parametrize(
    ('dataset', 'cache', 'transforms', 'files'),
    [
        (dict(type='ToyDataset'), False, [], None),
        (IMAGES, False, NAMES, '.jpg'),
        (CACHED, True, NAMES, '.jpg'),
        (dict(type='Images', file='a'), False, NAMES, ''),
        (dict(type='Images', file=7), False, NAMES, None),
        (dict(type='Wraps', dataset=CACHED), True, NAMES, None),
        (dict(type='Joins', datasets=[dict(type='Wraps', dataset=IMAGES)]), False, NAMES, None),
        (dict(type='Joins', datasets=[]), False, [], None),
        (dict(type='Endless'), False, [], None),
    ],
)
def test_cost_of_a_sample(
    dataset: dict, cache: bool, transforms: list, files: str | None, tmp_path: Path
) -> None:
    cfg = config(tmp_path, SPARSE)
    cfg.train_dataloader.dataset = dataset
    found = found_in(cfg)
    assert (found['cache'], found['transforms'], found['files']) == (cache, transforms, files)


@pytest.mark.parametrize(
    ('compiled', 'dynamic'),
    [(None, None), (False, None), (dict(dynamic=False), False), (dict(dynamic=True), True)],
)
def test_kind_of_compilation(compiled: Any, dynamic: bool | None, tmp_path: Path) -> None:
    runner = Runner.from_cfg(config(tmp_path, SPARSE))
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.cfg.compile = compiled
    assert setting_of(runner)['compile_dynamic'] is dynamic


def test_local_world_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmtempo.monitor.run_settings.get_world_size', lambda: 8)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    found = found_in(config(tmp_path, STOCK))
    assert (found['world'], found['local_world'], found['effective_batch']) == (8, 2, 16)


def test_batches_per_update() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    one, four = (OptimWrapper(optimizer, accumulative_counts=count) for count in (1, 4))
    assert batches_per_update(SimpleNamespace(optim_wrapper=four)) == 4
    assert batches_per_update(SimpleNamespace(optim_wrapper=SimpleNamespace())) == 1
    several = OptimWrapperDict(a=one, b=four)
    assert batches_per_update(SimpleNamespace(optim_wrapper=several)) == 4


@pytest.mark.parametrize(
    ('batch', 'shape'),
    [
        (dict(inputs=torch.zeros(2, 3, 4)), (2, 3, 4)),
        (dict(inputs=[torch.zeros(3, 4), torch.zeros(5, 6)]), (2, 3, 4)),
        (dict(inputs=[]), (0,)),
        (dict(inputs='x'), None),
        (dict(inputs=['a', 'b']), (2,)),
        (torch.zeros(2, 3), None),
        ([1], None),
        (None, None),
    ],
)
def test_shape_of_inputs(batch: Any, shape: tuple | None) -> None:
    assert shape_of(batch) == shape


def test_files_of_samples() -> None:
    samples = [SimpleNamespace(img_path=f'{number}.jpg') for number in range(20)]
    assert files_of(dict(data_samples=samples)) == [f'{number}.jpg' for number in range(16)]
    assert files_of(dict(data_samples=[SimpleNamespace(), SimpleNamespace(img_path=None)])) == []
    assert files_of(dict(inputs=[])) == files_of([1]) == []
