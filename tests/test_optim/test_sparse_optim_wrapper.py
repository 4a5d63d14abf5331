"""Weights and logs equal those of `OptimWrapper`, without synchronization."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.optim import SparseOptimWrapper
from mmtempo.optim.sparse_optim_wrapper import total_norm
from tests.testing.amp_training import BY_NORM, BY_VALUE, Counts
from tests.testing.sparse_training import Training, adamw, adamw_fused, sgd


def stock_and_ours(
    ours: dict | None = None, iterations: int = 50, **options: Any
) -> tuple[Training, Training]:
    """Run the same training with both wrappers; each gets a copy of clip_grad to pop from."""
    clip = options.pop('clip_grad', None)
    return tuple(
        Training(build, clip_grad=dict(clip) if clip else None, **options, **extra).run(iterations)
        for build, extra in ((OptimWrapper, {}), (SparseOptimWrapper, ours or {}))
    )


def test_parameter_groups_are_plain_dicts() -> None:
    """A ConfigDict costs ten times as much a lookup, and optimizers look up in each step."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([ConfigDict(params=[parameter], lr=0.5)], lr=0.1)
    SparseOptimWrapper(optimizer)
    assert [type(group) for group in optimizer.param_groups] == [dict]
    assert optimizer.param_groups[0]['lr'] == 0.5
    assert optimizer.param_groups[0]['params'] == [parameter]


def test_wrapper_is_registered() -> None:
    assert OPTIM_WRAPPERS.get('SparseOptimWrapper') is SparseOptimWrapper


@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
@pytest.mark.parametrize('counts', [dict(), dict(accumulative_counts=4, max_counts=50)])
@pytest.mark.parametrize(
    'clip_grad', [None, BY_NORM, dict(max_norm=0.1, norm_type='inf'), BY_VALUE]
)
@pytest.mark.parametrize('norm_interval', [None, 7])
def test_weights_equal_those_of_stock(
    norm_interval: int | None, clip_grad: dict | None, counts: dict, optimizer: Callable
) -> None:
    stock, ours = stock_and_ours(
        dict(norm_interval=norm_interval), clip_grad=clip_grad, optimizer=optimizer, **counts
    )
    assert ours.state() == stock.state()
    assert ours.weights() != Training(OptimWrapper).weights()


@pytest.mark.parametrize('counts', [dict(), dict(accumulative_counts=4, max_counts=50)])
@pytest.mark.parametrize('clip_grad', [BY_NORM, dict(max_norm=0.1, norm_type='inf')])
def test_logged_norms_equal_those_of_stock(clip_grad: dict, counts: dict) -> None:
    stock, ours = stock_and_ours(clip_grad=clip_grad, **counts)
    expected = stock.logged()
    assert len(expected) == (13 if counts else 50)
    assert max(expected) > clip_grad['max_norm'], 'not the norm before clipping'
    assert ours.store.values('train/grad_norm') == expected
    assert ours.store.values('watch/grad_norm') == expected
    assert ours.logged() == []


@pytest.mark.parametrize('clip_grad', [None, BY_VALUE])
def test_nothing_is_logged_if_stock_logs_nothing(clip_grad: dict | None) -> None:
    stock, ours = stock_and_ours(clip_grad=clip_grad)
    assert stock.logged() == []
    assert ours.store.notes == []
    assert ours.logged() == []


@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
def test_norm_is_logged_at_norm_interval(clip_grad: dict | None) -> None:
    """The watch gets the norm in each update that computes it anyway."""
    every = Training(SparseOptimWrapper, clip_grad=dict(BY_NORM)).run(1)
    assert every.store.keys == {'train/grad_norm', 'watch/grad_norm'}
    _, each = stock_and_ours(dict(norm_interval=1), clip_grad=clip_grad)
    _, ours = stock_and_ours(dict(norm_interval=7), clip_grad=clip_grad)
    norms = each.store.values('train/grad_norm')
    assert len(norms) == 50
    assert ours.store.values('train/grad_norm') == norms[6::7]
    watched = norms if clip_grad is BY_NORM else norms[6::7]
    assert ours.store.values('watch/grad_norm') == watched


def test_norm_interval_counts_updates_across_a_resume() -> None:
    options = dict(accumulative_counts=4, max_counts=50, norm_interval=3)
    training = Training(SparseOptimWrapper, **options)
    at = []
    for _ in range(50):
        before = len(training.store.notes)
        training.run(1)
        if len(training.store.notes) > before:
            at.append(training.iteration)
    assert at == [12, 24, 36, 48]

    resumed = Training(SparseOptimWrapper, **options)
    resumed.wrapper.initialize_count_status(resumed.model, 40, 50)
    resumed.run(7)
    assert resumed.store.notes == []
    resumed.run(1)
    assert resumed.store.keys == {'train/grad_norm', 'watch/grad_norm'}


def test_last_update_with_fewer_iterations_is_counted() -> None:
    options = dict(accumulative_counts=4, max_counts=50, norm_interval=13)
    training = Training(SparseOptimWrapper, **options).run(49)
    assert training.store.notes == []
    training.run(1)
    assert len(training.store.values('train/grad_norm')) == 1


@pytest.mark.parametrize('norm_interval', [None, 7])
@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
def test_log_without_the_sparse_hook_equals_that_of_stock(
    clip_grad: dict | None, norm_interval: int | None
) -> None:
    stock, ours = stock_and_ours(
        dict(norm_interval=norm_interval), clip_grad=clip_grad, store=False
    )
    _, each = stock_and_ours(dict(norm_interval=1), clip_grad=clip_grad)
    norms = each.store.values('train/grad_norm')
    if clip_grad is BY_NORM:
        assert norms == stock.logged()
    if norm_interval is None:
        assert ours.logged() == stock.logged()
    else:
        assert ours.logged() == norms[6::7]


@pytest.mark.parametrize('skips', [False, True])
@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
def test_training_does_not_synchronize(
    clip_grad: dict | None, optimizer: Callable, skips: bool
) -> None:
    clip = dict(clip_grad) if clip_grad else None
    training = Training(SparseOptimWrapper, optimizer, clip_grad=clip, norm_interval=2)
    training.wrapper.skip_nonfinite = skips
    training.run(1)  # creates the optimizer's state
    with SyncCensus() as census:
        training.run(4, poison=(3,) if skips else ())
    assert census.table() == []
    assert training.store.values('watch/skipped') == ([0.0, 0.0, 0.0, 1.0, 0.0] if skips else [])


def test_census_counts_synchronizations_of_stock() -> None:
    training = Training(OptimWrapper, clip_grad=dict(BY_NORM)).run(1)
    with SyncCensus() as census:
        training.run(3)
    assert len(census.waits) >= 3


@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE, dict(max_norm=1.0, norm_type=0)])
@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
@pytest.mark.parametrize('poison', [(0,), (20, 21)])
def test_update_with_nan_is_skipped(
    poison: tuple[int, ...], optimizer: Callable, clip_grad: dict | None
) -> None:
    clip = dict(clip_grad) if clip_grad else None
    training = Training(SparseOptimWrapper, optimizer, clip_grad=clip)
    training.wrapper.skip_nonfinite = True
    training.run(poison[0])
    before = training.state()
    training.run(len(poison), poison)
    assert training.state() == before
    training.run(10)
    assert training.weights() != before[: len(training.weights())]
    assert all(param.isfinite().all() for param in training.model.parameters())
    skipped = [float(index in poison) for index in range(training.iteration)]
    assert training.store.values('watch/skipped') == skipped
    norms = training.store.values('watch/grad_norm')
    assert [float(not torch.tensor(norm).isfinite()) for norm in norms] == skipped


@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
def test_update_with_infinite_norm_is_skipped(clip_grad: dict | None) -> None:
    clip = dict(clip_grad) if clip_grad else None
    training = Training(SparseOptimWrapper, adamw, clip_grad=clip)
    training.wrapper.skip_nonfinite = True
    before = training.run(3).state()
    assert training.run(1, poison=(3,), by=1e30).state() == before
    assert training.store.values('watch/grad_norm')[3] == float('inf')
    assert training.store.values('watch/skipped') == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
def test_weights_without_skips_equal_those_of_stock(
    optimizer: Callable, clip_grad: dict | None
) -> None:
    stock, _ = stock_and_ours(clip_grad=clip_grad, optimizer=optimizer)
    clip = dict(clip_grad) if clip_grad else None
    training = Training(SparseOptimWrapper, optimizer, clip_grad=clip)
    training.wrapper.skip_nonfinite = True
    assert training.run(50).state() == stock.state()
    logged = training.store.values('train/grad_norm')
    assert logged == (stock.logged() if clip_grad is BY_NORM else [])


def test_nothing_is_skipped_by_default() -> None:
    training = Training(SparseOptimWrapper, clip_grad=dict(BY_NORM)).run(3, poison=(2,))
    assert training.model.first.weight.isnan().any()
    assert 'watch/skipped' not in training.store.keys


@pytest.mark.parametrize(('optimizer', 'times'), [(Counts, 1), (torch.optim.SGD, 0)])
def test_synchronizing_optimizer_is_logged_once(
    optimizer: type, times: int, warnings_of: Callable
) -> None:
    training = Training(SparseOptimWrapper, lambda groups: optimizer(groups, lr=0.1, momentum=0.9))
    training.run(1)
    training.wrapper.skip_nonfinite = True
    warned = warnings_of(lambda: training.run(5))
    assert sum('optim_wrapper.optimizer.fused=True' in text for text in warned) == times


def test_step_without_gradients_logs_nothing() -> None:
    training = Training(SparseOptimWrapper, clip_grad=dict(BY_NORM), norm_interval=1)
    training.wrapper.skip_nonfinite = True
    training.wrapper.step()
    assert training.store.notes == []


def test_total_norm_of_older_torch_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    grads = [torch.randn(3, 4), torch.randn(()), torch.randn(7)]
    expected = torch.cat([grad.flatten() for grad in grads]).norm()
    torch.testing.assert_close(total_norm(grads), expected)
    monkeypatch.delattr(torch.nn.utils, 'get_total_norm')
    torch.testing.assert_close(total_norm(grads), expected)


@pytest.mark.parametrize(
    ('interval', 'error'), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_interval_is_refused(interval: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f'optim_wrapper.norm_interval: expected .* found {interval}'):
        Training(SparseOptimWrapper, norm_interval=interval)


def test_state_dict_is_interchangeable_with_stock() -> None:
    stock, ours = stock_and_ours(clip_grad=BY_NORM)
    for one, other in ((stock, ours), (ours, stock)):
        one.run(3)
        other.wrapper.load_state_dict(deepcopy(one.wrapper.state_dict()))
        other.model.load_state_dict(one.model.state_dict())
        assert other.state() == one.state()
        other.iteration = one.iteration
        assert other.run(5).state() == one.run(5).state()
