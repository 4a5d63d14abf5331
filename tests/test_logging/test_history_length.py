"""Histories are as long as the windows of the log processor, and keep running totals."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.logging import HistoryBuffer

from mmtempo.logging.bounded_history import BoundedHistory
from mmtempo.logging.history_length import length_of_history, log_global_windows, totals_of


def runner_with(*windows: dict, logger: Any = None) -> Any:
    """A runner with an evaluation of 20 batches and an epoch of 300."""
    return SimpleNamespace(
        log_processor=SimpleNamespace(window_size=10, custom_cfg=list(windows)),
        val_loop=True, val_dataloader=range(20), train_dataloader=range(300), logger=logger,
    )  # fmt: skip


def test_length_covers_the_windows_of_a_key() -> None:
    runner = runner_with(
        dict(data_src='loss', window_size=70),
        dict(data_src='loss', window_size='global'),
        dict(data_src='acc', window_size='epoch'),
    )
    assert length_of_history(runner, 5, 'train/lr') == 10
    assert length_of_history(runner, 50, 'train/lr') == 50
    assert length_of_history(runner, 5, 'train/loss') == 70
    assert length_of_history(runner, 5, 'train/acc') == 300
    assert length_of_history(runner, 5, 'val/time') == 21
    assert length_of_history(None, 5, 'train/loss') == 5


@pytest.mark.parametrize(
    ('method', 'level', 'text'),
    [
        ('mean', logging.INFO, 'is computed as a running mean; single values are kept for 10 '),
        ('median', logging.WARNING, "asks for 'median' over window_size='global', but only the la"),
    ],
)
def test_global_windows_are_explained(
    method: str, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger('test_history_length')
    of_loss = dict(data_src='loss', log_name='all', method_name=method, window_size='global')
    with caplog.at_level(logging.INFO, logger.name):
        log_global_windows(runner_with(of_loss, dict(data_src='lr'), logger=logger), 5)
    (record,) = caplog.records
    assert record.levelno == level
    assert text in record.message


def test_totals_of_histories_that_have_dropped_values() -> None:
    short, long = BoundedHistory(2), BoundedHistory(9)
    for history in (short, long):
        history.extend([1.0, 2.0, 6.0], [1, 1, 1])
    live = {'short': short, 'long': long, 'plain': HistoryBuffer([1.0], [1])}
    complete = totals_of(live, {})
    assert complete() == {'short': [3, 9.0, 3, 1.0, 6.0]}


def test_totals_include_values_that_arrive_later() -> None:
    live, copy = BoundedHistory(2), BoundedHistory(2)
    for history in (live, copy):
        history.extend([1.0, 2.0], [1, 1])

    def arrive() -> None:
        copy.fetch = None
        copy.extend([6.0], [1])

    copy.fetch = arrive
    complete = totals_of({'loss': live}, {'loss': copy})
    live.extend([100.0], [1])  # a value after the checkpoint
    assert complete() == {'loss': [3, 9.0, 3, 1.0, 6.0]}
