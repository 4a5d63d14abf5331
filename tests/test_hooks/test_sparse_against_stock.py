"""Compare logs, histories and weights with those of the stock hooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

import tests.testing.checkpoints  # noqa: F401  (registers AmpOnCPU)
from mmtempo.checkpoint.loading import load_from_local
from tests.testing.toy import SPARSE, STOCK, by_epoch, config, logged, text_lines, train, weights

STOCK_AMP = 'AmpOnCPU'  # stock refuses to build its wrapper without a GPU
WINDOWS = [
    dict(data_src='loss', log_name='loss_mean', method_name='mean', window_size=30),
    dict(data_src='loss_b', log_name='worst', method_name='max', window_size=25),
    dict(data_src='loss', log_name='all', method_name='mean', window_size='global'),
    dict(data_src='loss', log_name='lowest', method_name='min', window_size='global'),
    dict(data_src='lr', log_name='lr_mean', method_name='mean', window_size=12),
]


def plain(cfg: Config) -> Config:
    return cfg


def windows(cfg: Config) -> Config:
    cfg.log_processor.custom_cfg = WINDOWS
    return cfg


def epochs(cfg: Config) -> Config:
    cfg = by_epoch(cfg, 25)
    cfg.default_hooks.logger.update(interval=8, ignore_last=False)
    cfg.log_processor.custom_cfg = [
        *WINDOWS,
        dict(data_src='loss_a', log_name='epoch_mean', method_name='mean', window_size='epoch'),
        dict(data_src='loss_a', log_name='epoch_max', method_name='max', window_size='epoch'),
    ]
    return cfg


def clipping(cfg: Config) -> Config:
    cfg.optim_wrapper.clip_grad = dict(max_norm=0.5)
    return cfg


def accumulation(cfg: Config) -> Config:
    cfg.optim_wrapper.update(accumulative_counts=3, clip_grad=dict(max_norm=0.5))
    return cfg


def hierarchy(cfg: Config) -> Config:
    cfg.log_processor.update(log_with_hierarchy=True, window_size=7, num_digits=6)
    cfg.default_hooks.logger.interval = 7
    return cfg


def amp(**precision: Any) -> Callable:
    def change(cfg: Config) -> Config:
        cfg.optim_wrapper.update(type=STOCK_AMP, clip_grad=dict(max_norm=0.5), **precision)
        return cfg

    return change


def assert_same(found: list[dict], expected: list[dict], count: int) -> None:
    assert len(found) == len(expected) == count
    for mine, theirs in zip(found, expected):
        assert list(mine) == list(theirs)  # keys, and their order
        assert mine == pytest.approx(theirs, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ('change', 'lines'),
    [
        (plain, 50),
        (epochs, 75),
        pytest.param(windows, 50, marks=pytest.mark.slow),
        pytest.param(clipping, 50, marks=pytest.mark.slow),
        pytest.param(accumulation, 50, marks=pytest.mark.slow),
        pytest.param(hierarchy, 71, marks=pytest.mark.slow),
        pytest.param(amp(dtype='bfloat16'), 50, marks=pytest.mark.slow),
        pytest.param(amp(dtype='float16', loss_scale=512.0), 50, marks=pytest.mark.slow),
        (amp(dtype='float16', loss_scale=dict(init_scale=2.0**24, growth_interval=50)), 50),
    ],
)
def test_logs_and_weights_of_500_iterations(change: Callable, lines: int, tmp_path: Path) -> None:
    stock = train(change(config(tmp_path / 'stock', STOCK)))
    cfg = change(config(tmp_path / 'sparse', SPARSE))
    cfg.default_hooks.runtime_info.history_length = 5  # the windows of the log processor extend it
    is_amp = cfg.optim_wrapper.type == STOCK_AMP
    cfg.optim_wrapper.type = 'SparseAmpOptimWrapper' if is_amp else 'SparseOptimWrapper'
    sparse = train(cfg)
    assert_same(logged(tmp_path / 'sparse'), logged(tmp_path / 'stock'), lines)
    assert text_lines(tmp_path / 'sparse') == text_lines(tmp_path / 'stock')
    expected = weights(stock)
    for key, value in weights(sparse).items():
        assert torch.equal(value, expected[key]), key


def without_times(history: dict[str, Any]) -> dict[str, list]:
    return {
        key: [value.tolist() for value in values.data]
        for key, values in history.items()
        if 'time' not in key
    }


@pytest.mark.parametrize(('first', 'then'), [(STOCK, SPARSE), (SPARSE, STOCK), (SPARSE, SPARSE)])
def test_resume_from_a_checkpoint_of_the_other_hooks(
    first: dict, then: dict, tmp_path: Path
) -> None:
    whole = train(windows(config(tmp_path / 'whole', STOCK)))
    train(windows(config(tmp_path / 'first', first, **{'train_cfg.max_iters': 250})))
    cfg = windows(config(tmp_path / 'then', then))
    cfg.resume, cfg.load_from = True, str(tmp_path / 'first/iter_250.pth')
    resumed = train(cfg)
    lines, expected = logged(tmp_path / 'then'), logged(tmp_path / 'whole')[25:]
    if first is SPARSE and then is STOCK:
        # The 'global' windows of stock cover only the values that the checkpoint has.
        lines = [{k: v for k, v in line.items() if k not in ('all', 'lowest')} for line in lines]
        expected = [
            {k: v for k, v in line.items() if k not in ('all', 'lowest')} for line in expected
        ]
    assert_same(lines, expected, 25)
    for key, value in weights(resumed).items():
        assert torch.equal(value, weights(whole)[key]), key


def test_checkpoint_holds_the_last_values_of_stock(tmp_path: Path) -> None:
    train(config(tmp_path / 'stock', STOCK))
    train(config(tmp_path / 'sparse', SPARSE))
    files = [tmp_path / name / 'iter_500.pth' for name in ('stock', 'sparse')]
    stock, sparse = (load_from_local(str(file), 'cpu') for file in files)
    assert list(stock) == list(sparse)
    expected = without_times(stock['message_hub']['log_scalars'])
    found = without_times(sparse['message_hub']['log_scalars'])
    assert list(found) == list(expected)
    for key, (values, counts) in found.items():
        assert len(values) == min(100, len(expected[key][0]))
        assert [values, counts] == [part[-len(values) :] for part in expected[key]], key
    assert b'BoundedHistory' not in files[1].read_bytes()  # stock reads it without mmtempo
    assert sparse['message_hub']['resumed_keys'] == stock['message_hub']['resumed_keys']
