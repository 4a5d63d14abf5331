"""Mixed precision equals that of `AmpOptimWrapper`, without synchronization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import nn

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper, sparse_amp_optim_wrapper
from mmtempo.optim.skippable_step import GuardedGradScaler
from tests.testing.amp_training import BY_NORM, BY_VALUE, HUGE, Counts, StockOnCPU, scale_of
from tests.testing.sparse_training import Training, adamw, adamw_fused, sgd

IN_EACH_PRECISION = pytest.mark.parametrize(
    'half',
    [
        dict(dtype='bfloat16'),
        dict(dtype='float16', loss_scale=HUGE),
        dict(dtype='float16', loss_scale=512.0),
    ],
    ids=['bfloat16', 'dynamic', 'static'],
)


def train(build: Callable, iterations: int = 50, clip_grad: Any = None, **options: Any) -> Training:
    clip = dict(clip_grad) if clip_grad else None
    return Training(build, clip_grad=clip, **options).run(iterations)


def test_wrapper_is_registered_and_an_amp_wrapper() -> None:
    assert OPTIM_WRAPPERS.get('SparseAmpOptimWrapper') is SparseAmpOptimWrapper
    training = train(SparseAmpOptimWrapper, 0)
    assert isinstance(training.wrapper, AmpOptimWrapper)
    assert isinstance(training.wrapper, SparseOptimWrapper)


@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
@pytest.mark.parametrize('counts', [dict(), dict(accumulative_counts=4, max_counts=50)])
@pytest.mark.parametrize('clip_grad', [None, BY_NORM, BY_VALUE])
@IN_EACH_PRECISION
def test_weights_scale_and_norms_equal_those_of_stock(
    half: dict, clip_grad: dict | None, counts: dict, optimizer: Callable
) -> None:
    options = dict(clip_grad=clip_grad, optimizer=optimizer, **half, **counts)
    stock = train(StockOnCPU, **options)
    ours = train(SparseAmpOptimWrapper, **options)
    assert ours.weights() == stock.weights()
    assert ours.weights() != train(SparseAmpOptimWrapper, 0).weights()
    assert repr(ours.store.values('train/grad_norm')) == repr(stock.logged())
    assert bool(stock.logged()) == (clip_grad is BY_NORM)
    if half['dtype'] == 'float16':
        assert scale_of(ours) == scale_of(stock)
        assert ours.wrapper.state_dict()['loss_scaler'] == stock.wrapper.loss_scaler.state_dict()
        if half['loss_scale'] is HUGE:
            assert scale_of(ours) < HUGE['init_scale'] / 16, 'no update overflowed'


def test_int_is_a_fixed_scale() -> None:
    """`--cfg-options` gives an int."""
    one = train(SparseAmpOptimWrapper, dtype='float16', loss_scale=512)
    other = train(SparseAmpOptimWrapper, dtype='float16', loss_scale=512.0)
    assert one.weights() == other.weights()
    assert scale_of(one) == 512.0
    assert isinstance(one.wrapper._scale_update_param, float)


@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
@pytest.mark.parametrize('clip_grad', [None, BY_NORM])
@IN_EACH_PRECISION
def test_training_does_not_synchronize(
    half: dict, clip_grad: dict | None, optimizer: Callable
) -> None:
    clip = dict(clip_grad) if clip_grad else None
    training = Training(
        SparseAmpOptimWrapper, optimizer, clip_grad=clip, norm_interval=2, **half
    ).run(1)
    while not training.optimizer.state:  # updates that overflow create no state
        training.run(1)
    with SyncCensus() as census:
        training.run(6, poison=(training.iteration + 2,) if half['dtype'] == 'float16' else ())
    assert census.table() == []


def test_census_counts_synchronizations_of_stock() -> None:
    training = train(StockOnCPU, 1, dtype='float16', loss_scale=512.0)
    with SyncCensus() as census:
        training.run(3)
    assert len(census.waits) >= 3


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32', 'float64', torch.bfloat16, None])
def test_only_float16_is_scaled(dtype: Any) -> None:
    training = train(SparseAmpOptimWrapper, 2, dtype=dtype, clip_grad=BY_NORM)
    assert not training.wrapper.loss_scaler.is_enabled()
    assert training.store.keys == {'train/grad_norm', 'watch/grad_norm'}
    scaled = train(SparseAmpOptimWrapper, 2, dtype='float16', clip_grad=BY_NORM)
    assert scaled.wrapper.loss_scaler.is_enabled()
    assert (
        train(
            SparseAmpOptimWrapper, 2, dtype=torch.float16, loss_scale=dict(enabled=False)
        ).wrapper.loss_scaler.is_enabled()
        is False
    )


def test_cast_dtype_equals_that_of_stock() -> None:
    for dtype, expected in ((None, None), ('float16', torch.float16)):
        assert train(SparseAmpOptimWrapper, 0, dtype=dtype).wrapper.cast_dtype is expected


@pytest.mark.parametrize(
    ('dtype', 'computed'),
    [
        ('float16', torch.float16),
        ('bfloat16', torch.bfloat16),
        (None, torch.bfloat16),
        ('float32', torch.float32),
    ],
)
def test_autocast_computes_in_dtype(dtype: str | None, computed: torch.dtype) -> None:
    training = train(SparseAmpOptimWrapper, 0, dtype=dtype)
    with training.wrapper.optim_context(training.model):
        assert training.model(torch.randn(2, 6)).dtype is computed
    assert training.model(torch.randn(2, 6)).dtype is torch.float32


def test_gradients_are_exchanged_for_updates_only() -> None:
    entered = []

    class Parallel(nn.Module):
        @contextmanager
        def no_sync(self) -> Iterator[None]:
            entered.append(training.iteration)
            yield

    training = Training(SparseAmpOptimWrapper, accumulative_counts=3)
    for _ in range(6):
        with training.wrapper.optim_context(Parallel()):
            pass
        training.run(1)
    assert entered == [0, 1, 3, 4]


@pytest.mark.parametrize('device', ['cuda', 'npu'])
def test_default_dtype_of_accelerators_is_that_of_autocast(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU only the decision to scale can be tested."""
    built = []
    monkeypatch.setattr(sparse_amp_optim_wrapper, 'get_device', lambda: device)
    monkeypatch.setattr(
        sparse_amp_optim_wrapper,
        'GuardedGradScaler',
        lambda kind, **options: built.append((kind, options['enabled'])),
    )
    monkeypatch.setattr(
        sparse_amp_optim_wrapper.amp_optimizer_wrapper,
        'GradScaler',
        lambda **options: built.append(('stock', options['enabled'])),
    )
    kind = 'cuda' if device == 'cuda' else 'stock'
    for default in (torch.float16, torch.bfloat16):
        monkeypatch.setattr(torch, 'get_autocast_dtype', {device: default}.__getitem__)
        train(SparseAmpOptimWrapper, 0)
    train(SparseAmpOptimWrapper, 0, dtype='float16')
    monkeypatch.delattr(torch, 'get_autocast_dtype')  # torch 2.3
    monkeypatch.setattr(torch, 'get_autocast_gpu_dtype', lambda: torch.float16)
    train(SparseAmpOptimWrapper, 0)
    assert built == [(kind, True), (kind, False), (kind, True), (kind, True)]


def test_unsupported_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_amp_optim_wrapper, 'get_device', lambda: 'mps')
    with pytest.raises(RuntimeError, match='cuda, npu, mlu, musa, cpu, found mps'):
        train(SparseAmpOptimWrapper, 0)


def test_watch_gets_the_scale_after_each_update() -> None:
    training = Training(SparseAmpOptimWrapper, dtype='float16', loss_scale=HUGE)
    scales = []
    for _ in range(40):
        training.run(1)
        scales.append(scale_of(training))
    assert len(set(scales)) > 5
    assert training.store.values('watch/loss_scale') == scales
    assert training.store.keys == {'watch/loss_scale'}


@pytest.mark.parametrize('clip_grad', [BY_NORM, BY_VALUE, None])
@pytest.mark.parametrize('loss_scale', [64.0, 1000.0, HUGE], ids=['64', '1000', 'dynamic'])
def test_norm_is_that_of_unscaled_gradients(loss_scale: Any, clip_grad: dict | None) -> None:
    """An infinite norm, which is normal with a scaler, is not given to the watch."""
    options = dict(dtype='float16', loss_scale=loss_scale)
    ours = train(SparseAmpOptimWrapper, 21, clip_grad=clip_grad, norm_interval=3, **options)
    unclipped = dict(max_norm=1e9) if clip_grad is None else clip_grad
    stock = train(StockOnCPU, 21, clip_grad=unclipped, **options)
    norms = ours.store.values('train/grad_norm')
    assert len(norms) == 7
    if clip_grad is not BY_VALUE:
        expected = stock.logged()[2::3]
        torch.testing.assert_close(torch.tensor(norms), torch.tensor(expected), equal_nan=True)
    assert 0.01 < norms[-1] < 10 or loss_scale is HUGE
    assert ours.store.keys == {'train/grad_norm', 'watch/loss_scale'}


def test_norm_interval_changes_no_weight() -> None:
    """Also with a scale that is no power of two, so that unscaling rounds."""
    options = dict(dtype='float16', loss_scale=1000.0, optimizer=adamw_fused)
    plain = train(SparseAmpOptimWrapper, **options)
    assert train(SparseAmpOptimWrapper, norm_interval=1, **options).weights() == plain.weights()
    assert train(StockOnCPU, **options).weights() == plain.weights()


@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
def test_scaler_skips_nan(optimizer: Callable) -> None:
    """`skip_nonfinite` has no further effect."""
    training = Training(SparseAmpOptimWrapper, optimizer, dtype='float16', loss_scale=512.0)
    training.wrapper.skip_nonfinite = True
    before = training.run(5).state()
    assert training.run(1, poison=(5,)).state() == before
    assert training.run(1).state() != before
    assert training.store.keys == {'watch/loss_scale'}


@pytest.mark.parametrize('optimizer', [sgd, adamw, adamw_fused])
def test_skip_nonfinite_works_without_scaling(optimizer: Callable) -> None:
    training = Training(SparseAmpOptimWrapper, optimizer, dtype='bfloat16')
    training.wrapper.skip_nonfinite = True
    before = training.run(5).state()
    assert training.run(1, poison=(5,)).state() == before
    assert training.run(1).state() != before
    assert training.store.values('watch/skipped') == [0.0] * 5 + [1.0, 0.0]


@pytest.mark.parametrize(('optimizer', 'times'), [(Counts, 1), (torch.optim.SGD, 0)])
def test_synchronizing_optimizer_is_logged_once(
    optimizer: type, times: int, warnings_of: Callable
) -> None:
    training = Training(
        SparseAmpOptimWrapper,
        lambda groups: optimizer(groups, lr=0.1, momentum=0.9),
        dtype='float16',
        loss_scale=HUGE,
    )
    warned = warnings_of(lambda: training.run(30))
    assert training.optimizer.state
    assert sum('optim_wrapper.optimizer.fused=True' in text for text in warned) == times


@pytest.mark.parametrize(('optimizer', 'times'), [(adamw, 1), (adamw_fused, 0)])
def test_fsdp_uses_the_scaler_of_torch_and_logs_synchronization(
    optimizer: Callable, times: int, warnings_of: Callable
) -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    options = dict(use_fsdp=True, dtype='float16', loss_scale=512.0)
    training = Training(SparseAmpOptimWrapper, optimizer, **options)
    scaler = training.wrapper.loss_scaler
    assert type(scaler) is ShardedGradScaler
    scaler.unscale_ = lambda optimizer: None  # would communicate with other ranks
    scaler.step = lambda optimizer: optimizer.step()
    warned = warnings_of(lambda: training.run(3))
    assert sum('optim_wrapper.optimizer.fused=True' in text for text in warned) == times
    unscaled = Training(SparseAmpOptimWrapper, use_fsdp=True, dtype='bfloat16')
    assert not unscaled.wrapper.loss_scaler.is_enabled()


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
@pytest.mark.parametrize('loss_scale', [HUGE, 512.0], ids=['dynamic', 'static'])
def test_checkpoints_are_interchangeable_with_stock(loss_scale: Any, dtype: str) -> None:
    options = dict(loss_scale=loss_scale, dtype=dtype, optimizer=adamw)
    stock, ours = train(StockOnCPU, 30, **options), train(SparseAmpOptimWrapper, 20, **options)
    for one, other in ((stock, ours), (ours, stock)):
        one.run(3)
        saved = deepcopy(one.wrapper.state_dict())
        other.wrapper.load_state_dict(deepcopy(saved))
        other.model.load_state_dict(one.model.state_dict())
        other.iteration = one.iteration
        loaded = other.wrapper.state_dict()
        assert loaded['loss_scaler'] == saved['loss_scaler']
        assert loaded['base_param_settings'].keys() == saved['base_param_settings'].keys()
        assert other.run(5).weights() == one.run(5).weights()


def test_unused_scale_is_kept() -> None:
    """Train in float16, then in bfloat16, then in float16 again."""
    half = train(SparseAmpOptimWrapper, 30, dtype='float16', loss_scale=HUGE)
    saved = half.wrapper.state_dict()
    brain = train(SparseAmpOptimWrapper, 1, dtype='bfloat16')
    assert brain.wrapper.state_dict()['loss_scaler']['scale'] == 2.0**16
    brain.wrapper.load_state_dict(deepcopy(saved))
    again = train(SparseAmpOptimWrapper, 0, dtype='float16')
    again.wrapper.load_state_dict(deepcopy(brain.run(3).wrapper.state_dict()))
    assert again.wrapper.state_dict()['loss_scaler'] == saved['loss_scaler']
    assert scale_of(again) == scale_of(half) < HUGE['init_scale']


def test_checkpoint_without_scaling_has_the_scale_of_the_config() -> None:
    for loss_scale in (512, dict(init_scale=512.0, growth_factor=3.0, backoff_factor=0.25)):
        unscaled, scaled = (
            train(SparseAmpOptimWrapper, 0, dtype=dtype, loss_scale=loss_scale).wrapper.state_dict()
            for dtype in ('bfloat16', 'float16')
        )
        assert unscaled['loss_scaler'] == scaled['loss_scaler']


def test_empty_scaler_state_changes_nothing() -> None:
    for dtype in ('float16', 'bfloat16'):
        training = train(SparseAmpOptimWrapper, 1, dtype=dtype, loss_scale=512.0)
        state = training.wrapper.state_dict()
        saved = dict(deepcopy(state), loss_scaler={})
        training.wrapper.load_state_dict(saved)
        assert training.wrapper.state_dict()['loss_scaler'] == state['loss_scaler']


def test_checkpoint_without_mixed_precision_is_loaded() -> None:
    plain = train(SparseOptimWrapper, 3)
    training = train(SparseAmpOptimWrapper, 0, dtype='float16')
    training.wrapper.load_state_dict(deepcopy(plain.wrapper.state_dict()))
    assert training.wrapper.state_dict()['loss_scaler']['scale'] == 2.0**16
    assert training.optimizer.state


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (dict(loss_scale='static'), ValueError, "loss_scale: expected 'dynamic', .* 'static'"),
        (dict(loss_scale=None), TypeError, "loss_scale: expected 'dynamic', .* found None"),
        (dict(loss_scale=True), TypeError, "loss_scale: expected 'dynamic', .* found True"),
        (dict(loss_scale=0), ValueError, "loss_scale: expected 'dynamic', a positive .* found 0"),
        (dict(loss_scale=-2.0), ValueError, 'loss_scale: expected .* found -2.0'),
        (dict(loss_scale=float('inf')), ValueError, 'loss_scale: expected .* found inf'),
        (dict(loss_scale=dict(scale=2)), ValueError, "loss_scale: expected .*init_.* 'scale'"),
        (dict(loss_scale=dict(init_scale='2')), TypeError, "loss_scale.init_scale: .* found '2'"),
        (dict(loss_scale=dict(growth_factor=1)), ValueError, 'growth_factor: .* above 1, found 1'),
        (
            dict(loss_scale=dict(backoff_factor=1.5)),
            ValueError,
            'backoff_factor: .* 0 and 1, .*1.5',
        ),
        (dict(loss_scale=dict(growth_interval=2.5)), TypeError, 'interval: .* positive int, .*2.5'),
        (dict(loss_scale=dict(enabled=1)), TypeError, 'enabled: .* True or False, found 1'),
        (dict(loss_scale=dict(process_group=None)), ValueError, "found 'process_group'"),
        (dict(dtype='half'), ValueError, "dtype: expected one of float16, .* found 'half'"),
        (dict(dtype=torch.int8), ValueError, 'dtype: expected one of .* found torch.int8'),
        (dict(dtype=16), TypeError, 'dtype: expected one of .* found 16'),
        (dict(norm_interval=0), ValueError, 'norm_interval: expected a positive int .* found 0'),
    ],
)
def test_bad_values_are_refused(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f'optim_wrapper.*{message}'):
        Training(SparseAmpOptimWrapper, **options)


def test_loss_scale_takes_all_options_of_the_scaler() -> None:
    options = dict(
        init_scale=4, growth_factor=4.0, backoff_factor=0.25, growth_interval=3, enabled=True
    )
    training = train(SparseAmpOptimWrapper, 3, dtype='float16', loss_scale=options)
    assert type(training.wrapper.loss_scaler) is GuardedGradScaler
    assert scale_of(training) == 16.0
    stock = train(StockOnCPU, 3, dtype='float16', loss_scale=options)
    assert training.weights() == stock.weights()


@pytest.mark.slow
def test_runner_trains_and_resumes_with_the_wrapper(tiny_cfg: Config) -> None:
    tiny_cfg.optim_wrapper.update(
        type='SparseAmpOptimWrapper', dtype='float16', loss_scale='dynamic', norm_interval=1
    )
    tiny_cfg.default_hooks.pop('visualization', None)
    tiny_cfg.train_cfg.update(max_iters=2, val_interval=2)
    runner = Runner.from_cfg(tiny_cfg)
    runner.train()
    saved = runner.optim_wrapper.state_dict()['loss_scaler']
    tiny_cfg.resume = True
    tiny_cfg.experiment_name += '_resumed'
    tiny_cfg.train_cfg.update(max_iters=3, val_interval=3)
    resumed = Runner.from_cfg(tiny_cfg)
    resumed.train()
    assert resumed.iter == 3
    assert resumed.optim_wrapper.state_dict()['loss_scaler'].keys() == saved.keys()
