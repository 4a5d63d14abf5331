"""A monitor measures a training, ends once, and leaves nothing in the runner."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.registry import DATASETS
from mmengine.runner import Runner

from mmtempo.datasets import CachedDataset
from mmtempo.datasets.cache.sample_cache import CacheStats
from mmtempo.monitor.hook_calls import timers
from mmtempo.monitor.hook_timer import add_edges
from mmtempo.monitor.options import MonitorOptions
from mmtempo.monitor.training_monitor import TrainingMonitor, end_monitored, worker_of
from mmtempo.utils import phases
from tests.testing.toy import SPARSE, ToyDataset, config

OPTIONS = MonitorOptions(None, 8.0, 0, None)


class Monitors(Hook):
    """Hook that begins a monitor and ends it in the given ways."""

    priority = 'LOWEST'
    options = OPTIONS

    def __init__(self, *ends: Any) -> None:
        self.ends = ends

    def before_run(self, runner: Any) -> None:
        add_edges(runner)

    def before_train(self, runner: Any) -> None:
        self.monitor = TrainingMonitor(runner, self.options)
        self.monitor.begin(runner)
        assert phases._active == [self.monitor.timeline]

    def after_train(self, runner: Any) -> None:
        for end in self.ends:
            end(self.monitor, runner)


def summary_after(work: Path, *ends: Any, options: Any = OPTIONS, **changes: Any) -> dict:
    cfg = config(work, SPARSE, **changes)
    cfg.train_cfg.max_iters = 12
    runner = Runner.from_cfg(cfg)
    hook = Monitors(*ends)
    hook.options = options
    runner.register_hook(hook)
    runner.train()
    assert phases._active == []
    assert not runner.model._forward_hooks
    assert not runner.model._forward_pre_hooks
    return json.loads((work / 'tempo_summary.json').read_text())


def complete(monitor: TrainingMonitor, runner: Any) -> None:
    monitor.leave(runner, is_complete=True)
    assert runner not in timers


def abort(monitor: TrainingMonitor, runner: Any) -> None:
    monitor.leave(runner, is_complete=False)


def fail(monitor: TrainingMonitor, runner: Any) -> None:
    end_monitored(ArithmeticError('no more'))


@pytest.mark.parametrize(
    ('ends', 'status', 'error'),
    [
        ([complete], 'completed', None),
        ([abort], 'interrupted', None),
        ([fail], 'crashed', 'ArithmeticError: no more'),
        ([complete, fail, abort], 'completed', None),
        ([fail, complete], 'crashed', 'ArithmeticError: no more'),
    ],
)
def test_first_end_decides_the_status(
    ends: list, status: str, error: str | None, tmp_path: Path
) -> None:
    summary = summary_after(tmp_path, *ends)
    assert (summary['status'], summary['error']) == (status, error)
    assert (summary['iterations'], summary['last_iter']) == (12, 12)
    assert {'data', 'forward', 'backward', 'step'} <= set(summary['phases'])


def sample_twice(monitor: TrainingMonitor, runner: Any) -> None:
    assert monitor._sampler is not None
    deadline = time.monotonic() + 60
    while not monitor._sampler.pressure() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_summary_has_the_pressure_of_the_run(tmp_path: Path) -> None:
    options = MonitorOptions(None, 8.0, 0.01, None)
    pressure = summary_after(tmp_path, sample_twice, complete, options=options)['pressure']
    assert pressure.pop('seconds') > 0
    assert pressure.pop('swapped', 0) >= 0
    if sys.platform == 'linux':
        assert {'busy', 'others'} <= set(pressure)
    assert all(share >= 0 for share in pressure.values())


@DATASETS.register_module()
class CachedToy(CachedDataset):
    """Cache of a dataset without a pipeline."""

    def __init__(self) -> None:
        self.dataset, self._installed = ToyDataset(), True

    def full_init(self) -> None:
        """Do nothing."""

    metainfo: dict = {}

    def describe(self) -> str:
        return 'cached'

    def stats(self) -> CacheStats:
        return CacheStats(samples=3, total=40, used=100, budget=200)


@pytest.mark.parametrize('loop', ['IterBasedTrainLoop', 'PrefetchIterBasedTrainLoop'])
def test_summary_has_the_figures_of_loader_and_cache(loop: str, tmp_path: Path) -> None:
    changes = {'train_dataloader.dataset.type': 'CachedToy', 'train_cfg.type': loop}
    summary = summary_after(tmp_path, complete, **changes)
    assert summary['cache'] == vars(CacheStats(samples=3, total=40, used=100, budget=200))
    if loop.startswith('Prefetch'):
        assert {'starved', 'seconds', 'starting', 'made', 'cpu'} < set(summary['loader'])
        assert summary['loader']['batches'] >= 12
    else:
        assert 'loader' not in summary


def runner_of(iteration: int = 0, by_epoch: bool = False, **loader: Any) -> Any:
    class Loader(SimpleNamespace):
        def __len__(self) -> int:
            return 10

    loop = SimpleNamespace(run_epoch=None) if by_epoch else SimpleNamespace()
    return SimpleNamespace(iter=iteration, train_loop=loop, train_dataloader=Loader(**loader))


ENDLESS = InfiniteSampler([0] * 8)


@pytest.mark.parametrize(
    ('runner', 'batch', 'worker'),
    [
        (runner_of(by_epoch=True, num_workers=4), 7, 3),
        (runner_of(by_epoch=True, num_workers=4, iteration=100), 7, 3),
        (runner_of(by_epoch=True, num_workers=0), 7, None),
        (runner_of(num_workers=4), 9, 1),
        (runner_of(num_workers=4), 10, None),  # the loader has restarted
        (runner_of(num_workers=4, sampler=ENDLESS), 10, 2),
        (runner_of(num_workers=4, sampler=ENDLESS, iteration=100), 110, None),  # resumed
    ],
)
def test_worker_of_a_batch(runner: Any, batch: int, worker: int | None) -> None:
    assert worker_of(runner)(batch) == worker
