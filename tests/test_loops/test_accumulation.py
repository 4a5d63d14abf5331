"""An update of k batches equals that of one large batch, in results and in all counters.

Models here have no batch normalization, whose statistics depend on the size of a batch.
Also covers `mmtempo.loops.training_step`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

import tests.testing.interrupted_training  # noqa: F401  (registers StopAt and Interrupted)
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.loaders import LoaderError, StreamPosition
from mmtempo.loops.accumulation import LogMeans, count_iterations
from mmtempo.loops.training_batches import PLACE
from mmtempo.timing.timeline import Timeline
from mmtempo.utils.phases import activate, deactivate
from tests.testing.loaders import build_loader
from tests.testing.noisy import noisy, noisy_epochs, seen
from tests.testing.toy import ToyDataset, logged, train, weights, with_evaluation

# 40 samples: three full updates an epoch, and one with batches of three samples and of one.
BATCH, BATCHES = 3, 4
UPDATES = 4
NAMES = ('ours', 'large')


@MODELS.register_module()
class WithoutBatchNorm(BaseModel):
    """A model that treats samples independently; its losses are means over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        self.calls = 0

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        batch = torch.stack(list(inputs))
        out = self.net(batch).float()
        if mode != 'loss':
            return [dict(out=value) for value in out]
        self.calls += 1
        error = out - batch.sum(1, keepdim=True)
        return dict(loss_a=error.square().mean(), acc=(error > 0).float().mean())


@HOOKS.register_module()
class Notes(Hook):
    """Records gradients and learning rates of each update, and the counters of each iteration."""

    def before_train(self, runner: Any) -> None:
        self.gradients: list[torch.Tensor] = []
        self.rates: list[float] = []
        self.counters: list[tuple] = []
        self.outputs: list[dict] = []
        self.evaluations = 0
        wrapper = runner.optim_wrapper
        if not isinstance(wrapper, OptimWrapperDict):
            wrapper.optimizer.register_step_pre_hook(self._note)

    def _note(self, optimizer: Any, *args: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group['params']]
        self.gradients.append(torch.cat([param.grad.flatten().clone() for param in params]))
        self.rates.append(optimizer.param_groups[0]['lr'])

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        self.counters.append((runner.epoch, runner.iter, batch_idx))

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.outputs.append(
            {key: torch.as_tensor(value).detach().item() for key, value in outputs.items()}
        )

    def after_val(self, runner: Any) -> None:
        self.evaluations += 1


def in_iterations(work: Path, **options: Any) -> Config:
    """Iterations without epochs."""
    return noisy(work, iterations=11, **options)


def in_iterations_of_epochs(work: Path, **options: Any) -> Config:
    """Iterations in a loop without epochs, with a sampler that has epochs."""
    cfg = noisy(work, iterations=11, **options)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    return cfg


def in_epochs(work: Path, **options: Any) -> Config:
    return noisy_epochs(work, epochs=3, **options)


KINDS: dict[str, Callable[..., Config]] = dict(
    iterations=in_iterations, iterations_of_epochs=in_iterations_of_epochs, epochs=in_epochs
)


def settings(
    kind: str, work: Path, batches: int = BATCHES, workers: int = 0, **options: Any
) -> Config:
    """Updates of twelve samples, in the given number of batches."""
    cfg = with_evaluation(KINDS[kind](work))
    cfg.model = dict(type='WithoutBatchNorm')
    cfg.train_dataloader.update(batch_size=BATCH * BATCHES // batches, num_workers=workers)
    cfg.train_cfg.update(count='updates', val_interval=2 if kind == 'epochs' else 5)
    cfg.optim_wrapper = dict(
        type='SparseOptimWrapper',
        accumulative_counts=batches,
        clip_grad=dict(max_norm=2.0),
        optimizer=dict(type='SGD', lr=0.05, momentum=0.9),
    )
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=4),
        dict(
            type='MultiStepLR',
            milestones=[1, 2],
            end=3,
            by_epoch=True,
            convert_to_iter_based=True,
        ),
    ]
    cfg.default_hooks.logger.interval = 3
    cfg.default_hooks.checkpoint.interval = 2
    cfg.custom_hooks = [
        *({'type': name} for name in ('Seen', 'Notes')),
        dict(type='EMAHook', momentum=0.1),
    ]
    cfg.merge_from_dict(options)
    return cfg


def hook_of(runner: Runner, cls: type) -> Any:
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, cls))
    return hook


def assert_close(one: Any, other: Any, what: str = '') -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), what
        for key in one:
            assert_close(one[key], other[key], f'{what}.{key}')
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), what
        for number, pair in enumerate(zip(one, other)):
            assert_close(*pair, f'{what}[{number}]')
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0, msg=what)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-5), what
    else:
        assert one == other, what


def log_points(work: Path) -> list[str]:
    """Return the positions that log lines begin with, as 'Epoch(train) [1][3/4]'."""
    (path,) = work.rglob('*.log')
    return re.findall(r'(?:Epoch|Iter)\(\w+\) +(?:\[[^]]*\])+', path.read_text())


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('kind', KINDS)
def test_training_equals_that_with_one_large_batch(kind: str, workers: int, tmp_path: Path) -> None:
    """Compare gradients, weights, averages, rates, log, evaluations and checkpoints."""
    ours = train(settings(kind, tmp_path / 'ours', workers=workers))
    large = train(settings(kind, tmp_path / 'large', batches=1))
    notes, expected = hook_of(ours, Notes), hook_of(large, Notes)
    updates = 12 if kind == 'epochs' else 11
    assert ours.iter == ours.max_iters == len(notes.gradients) == updates
    assert ours.model.calls > 3 * large.model.calls > 0
    assert max(float(one.norm()) for one in notes.gradients) == pytest.approx(2.0)  # as clipped
    assert_close(notes.gradients, expected.gradients)
    assert notes.rates == expected.rates
    assert len(set(notes.rates)) > 4
    assert notes.counters == expected.counters
    assert_close(notes.outputs, expected.outputs)
    assert notes.evaluations == expected.evaluations > 0
    assert_close(weights(ours), weights(large))
    averages, same = hook_of(ours, EMAHook).ema_model, hook_of(large, EMAHook).ema_model
    assert averages.steps == same.steps == updates
    assert_close(averages.state_dict(), same.state_dict())
    assert_close(logged(tmp_path / 'ours'), logged(tmp_path / 'large'))
    points = log_points(tmp_path / 'ours')
    assert points == log_points(tmp_path / 'large')
    assert len(points) > 3
    saved = [sorted(path.name for path in (tmp_path / name).rglob('*.pth')) for name in NAMES]
    assert saved[0] == saved[1] != []
    assert len(ours.train_dataloader) == len(large.train_dataloader) == UPDATES


@pytest.mark.parametrize('drop_last', [False, True])
def test_dropped_batches_are_not_counted(drop_last: bool, tmp_path: Path) -> None:
    """An epoch of thirteen or fourteen batches has four updates."""
    runner = train(
        settings('epochs', tmp_path, batches=4, **{'train_dataloader.drop_last': drop_last})
    )
    assert runner.iter == 12
    assert runner.model.calls == 3 * (13 if drop_last else 14)


@pytest.mark.parametrize(
    'wrapper',
    [
        dict(dtype='bfloat16'),
        dict(dtype='float16', loss_scale=512.0),
        dict(dtype='float16', loss_scale=dict(init_scale=2.0**6, growth_interval=3)),
    ],
    ids=['bfloat16', 'static', 'dynamic'],
)
def test_mixed_precision_is_close_to_one_large_batch(wrapper: dict, tmp_path: Path) -> None:
    """Results differ by the rounding of 16 bits."""
    found = []
    for name, batches in zip(NAMES, (BATCHES, 1)):
        cfg = settings('epochs', tmp_path / name, batches=batches)
        cfg.optim_wrapper.update(type='SparseAmpOptimWrapper', **wrapper)
        found.append(train(cfg))
    ours, large = found
    assert len(hook_of(ours, Notes).rates) == len(hook_of(large, Notes).rates) == 12
    state, expected = (one.optim_wrapper.state_dict()['loss_scaler'] for one in found)
    assert state == expected
    for key, value in weights(ours).items():
        torch.testing.assert_close(value, weights(large)[key], atol=5e-3, rtol=2e-2, msg=key)


@pytest.mark.parametrize('kind', KINDS)
def test_resumed_training_equals_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    whole = train(settings(kind, tmp_path / 'whole'))
    cfg = settings(kind, tmp_path / 'run', workers=2)
    cfg.custom_hooks.append(dict(type='StopAt', iteration=6))
    with pytest.raises(SystemExit):
        train(cfg)
    assert max(seen(tmp_path / 'run')) == 5
    runner = train(settings(kind, tmp_path / 'run', resume=True))
    assert seen(tmp_path / 'run') == seen(tmp_path / 'whole')
    rest = hook_of(runner, Notes)
    assert all(map(torch.equal, rest.gradients, hook_of(whole, Notes).gradients[6:]))
    assert rest.counters == hook_of(whole, Notes).counters[6:]
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(runner)[key]), key


@pytest.mark.parametrize('kind', KINDS)
def test_failed_batch_loses_its_update_only(kind: str, tmp_path: Path) -> None:
    whole = train(settings(kind, tmp_path / 'whole'))
    cfg = settings(kind, tmp_path / 'run')
    # The second batch of the second update.
    at = torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()[16]
    mark = str(tmp_path / 'mark')
    cfg.train_dataloader.dataset = dict(type='Interrupted', how='raise', at=at, mark=mark)
    with pytest.raises(LoaderError, match=f'sample {at}'):
        train(cfg)
    assert max(seen(tmp_path / 'run')) == 1
    runner = train(settings(kind, tmp_path / 'run', resume=True))
    rest = hook_of(runner, Notes)
    assert rest.counters[0][1] == 1
    assert all(map(torch.equal, rest.gradients, hook_of(whole, Notes).gradients[1:]))
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(runner)[key]), key


def test_resume_does_not_warn_of_a_lost_update(tmp_path: Path) -> None:
    """Stock warns if the iteration is no multiple of the accumulated batches."""
    train(settings('iterations', tmp_path, **{'train_cfg.max_iters': 7}))
    train(settings('iterations', tmp_path, resume=True))
    log = ''.join(path.read_text() for path in tmp_path.rglob('*.log'))
    assert 'resuming at epoch 1 after 84 samples' in log
    assert 'not divisible' not in log
    assert 'in the middle of an update' not in log


@pytest.mark.parametrize(
    ('kind', 'place'),
    [
        ('iterations', StreamPosition(0, 24, 72, 1)),
        ('iterations_of_epochs', StreamPosition(1, 8, 24, 1)),
    ],
)
def test_position_by_count_is_in_batches(kind: str, place: StreamPosition, tmp_path: Path) -> None:
    """A checkpoint without a position has the number of updates only."""
    runner = Runner.from_cfg(settings(kind, tmp_path))
    runner.train_loop._iter = 6
    assert runner.train_loop._position_by_count() == place


def test_resume_within_an_epoch_with_other_batches_keeps_the_samples(tmp_path: Path) -> None:
    """The run continues after the samples that are done; the epoch has the same samples."""
    cfg = settings('epochs', tmp_path)
    cfg.custom_hooks.append(dict(type='StopAt', iteration=5))
    with pytest.raises(SystemExit):
        train(cfg)
    options = {'train_dataloader.batch_size': 2, 'optim_wrapper.accumulative_counts': 8}
    runner = train(settings('epochs', tmp_path, resume=True, **options))
    # After twelve samples of the second epoch 28 are left, in updates of sixteen.
    assert hook_of(runner, Notes).counters == [
        *((1, 5, 1), (1, 6, 2)),
        *((2, 7, 0), (2, 8, 1), (2, 9, 2)),
    ]
    assert runner.message_hub.get_info(PLACE)['epoch'] == 3


@pytest.mark.parametrize('kind', ['iterations', 'epochs'])
@pytest.mark.parametrize('count', [None, 'iterations'])
def test_counted_iterations_equal_those_of_stock(
    kind: str, count: str | None, tmp_path: Path
) -> None:
    """Each batch is an iteration, also with accumulation; any wrapper is accepted."""
    found = []
    for name in ('stock', 'ours'):
        cfg = settings(kind, tmp_path / name, **{'optim_wrapper.type': 'OptimWrapper'})
        cfg.train_dataloader.dataset.type = 'ToyDataset'
        cfg.train_cfg.pop('count')
        if kind == 'iterations':
            cfg.train_cfg.update(max_iters=13)  # later epochs have another order than in stock
        if name == 'stock':
            cfg.train_cfg.type = cfg.train_cfg.type.removeprefix('Prefetch')
        elif count is not None:
            cfg.train_cfg.count = count
        found.append(train(cfg))
    stock, ours = found
    assert ours.iter == stock.iter == (13 if kind == 'iterations' else 42)
    assert hook_of(ours, Notes).counters == hook_of(stock, Notes).counters
    assert len(hook_of(ours, Notes).gradients) == len(hook_of(stock, Notes).gradients)
    for key, value in weights(stock).items():
        assert torch.equal(value, weights(ours)[key]), key


@HOOKS.register_module()
class Clocked(Hook):
    """A timeline with a clock that only samples and forward passes advance."""

    now = 0

    def before_train(self, runner: Any) -> None:
        self.timeline = Timeline('data', clock=lambda: Clocked.now)
        activate(self.timeline)
        runner.model.register_forward_pre_hook(lambda *_: self.go(1000))

    def go(self, nanoseconds: int) -> None:
        Clocked.now += nanoseconds

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self.timeline.begin()

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self.timeline.mark(self.timeline.phase('step'))

    def after_train(self, runner: Any) -> None:
        self.timeline.end()
        deactivate(self.timeline)


@DATASETS.register_module()
class ClockedDataset(ToyDataset):
    """A dataset in which a sample takes a nanosecond."""

    def __getitem__(self, index: int) -> dict:
        Clocked.now += 1
        return super().__getitem__(index)


def test_time_of_all_batches_is_attributed_to_data(tmp_path: Path) -> None:
    cfg = settings('iterations_of_epochs', tmp_path, **{'train_cfg.max_iters': 4})
    cfg.train_dataloader.dataset.type = 'ClockedDataset'
    cfg.custom_hooks = [dict(type='Clocked')]
    timeline = hook_of(train(cfg), Clocked).timeline
    spent = (timeline.last(4).spent * 1e9).round()
    data, step = (spent[:, timeline.phase(name)].tolist() for name in ('data', 'step'))
    assert step == [4000, 4000, 4000, 2000]
    assert data == [12, 12, 12, 4]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('count', ['update', '', None, 4, ['updates']])
def test_bad_count_is_refused(kind: str, count: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train_cfg.count must be 'iterations' or 'updates'"):
        Runner.from_cfg(settings(kind, tmp_path, **{'train_cfg.count': count})).train()


@pytest.mark.parametrize('counts', [0, -4, 2.5, '4', True])
def test_bad_accumulative_counts_are_refused(counts: Any, tmp_path: Path) -> None:
    cfg = settings('epochs', tmp_path, **{'optim_wrapper.accumulative_counts': counts})
    with pytest.raises(ValueError, match='optim_wrapper.accumulative_counts must be'):
        Runner.from_cfg(cfg).train()


@pytest.mark.parametrize('kind', ['iterations', 'epochs'])
def test_other_wrappers_are_refused(kind: str, tmp_path: Path) -> None:
    """Batches cannot be announced to them; with one batch an update they need not be."""
    wrapper = {'optim_wrapper.type': 'OptimWrapper'}
    refused = "train_cfg.count='updates' needs optim_wrapper.type=.*, found 'OptimWrapper'"
    with pytest.raises(ValueError, match=refused):
        train(settings(kind, tmp_path / 'refused', **wrapper))
    runner = train(settings(kind, tmp_path / 'taken', batches=1, **wrapper))
    assert runner.iter == runner.max_iters


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    runner = Runner.from_cfg(settings('iterations', tmp_path))
    first, second = (
        OptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
        for part in (runner.model.net[0], runner.model.net[2])
    )
    runner.optim_wrapper = OptimWrapperDict(generator=first, critic=second)
    runner.param_schedulers = None
    refused = "count='updates' supports one optimizer, found .* generator, critic"
    with pytest.raises(ValueError, match=refused):
        runner.train()


def test_built_loader_is_refused(tmp_path: Path) -> None:
    runner = Runner.from_cfg(settings('epochs', tmp_path))
    runner._train_dataloader = DataLoader(ToyDataset())
    with pytest.raises(ValueError, match='needs train_dataloader as a dict, found a DataLoader'):
        runner.train()


def test_length_of_the_loader_counts_iterations() -> None:
    loader = build_loader()
    count_iterations(loader, 4)
    assert len(loader.batch_sampler) == len(list(loader)) == 6
    assert len(loader) == 2


def test_log_means_are_over_samples() -> None:
    means = LogMeans()
    half = torch.tensor(60000.0, dtype=torch.float16)
    means.add(dict(loss=torch.tensor(2.0), acc=torch.tensor([10.0]), plain=1, half=half), 3)
    means.add(None, 100)
    means.add(dict(loss=torch.tensor(6.0), text='a', plain=0.5, count=torch.tensor(3)), 1)
    means.add(dict(loss=torch.tensor(0.0), text='b', map=torch.ones(2, 2), count=5, half=half), 4)
    found = means.take()
    assert list(found) == ['loss', 'acc', 'plain', 'half', 'text', 'count', 'map']
    assert float(found['loss']) == (3 * 2 + 6) / 8
    assert found['acc'].tolist() == [10.0]
    assert found['plain'] == (3 + 0.5) / 4
    assert float(found['half']) == 60000.0
    assert found['text'] == 'b'
    assert float(found['count']) == pytest.approx((3 + 4 * 5) / 5)
    assert found['map'].shape == (2, 2)


def test_log_means_keep_no_graph_and_do_not_synchronize() -> None:
    weight = torch.ones(1, requires_grad=True)
    with SyncCensus() as census:
        means = LogMeans()
        for _ in range(3):
            means.add(dict(loss=(weight * 2).sum()), 2)
        found = means.take()
    assert census.table() == []
    assert not found['loss'].requires_grad
    assert float(found['loss']) == 2.0
