"""Both arms of the logger benchmark do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmtempo.benchmarks import logger
from mmtempo.benchmarks.logger import INTERVAL, SCALARS, Arm, measure_logger


def test_both_arms_log_the_same_scalars() -> None:
    stock, ours = Arm('stock', 300), Arm('ours', 300)
    for arm in (stock, ours):
        arm.windows = 2
        arm.run()
        assert arm.runner.iter == 300 + 2 * INTERVAL
        assert arm.runner.written == 2
    tags = [
        arm.runner.log_processor.get_log_after_iter(arm.runner, arm.runner.iter - 1, 'train')[0]
        for arm in (stock, ours)
    ]
    losses = [{key: tag[key] for key in tag if 'time' not in key} for tag in tags]
    assert losses[0] == losses[1]
    assert len(losses[0]) == SCALARS + 2  # also the learning rate and the iteration
    assert ours.history_bytes() < stock.history_bytes()
    assert ours.history_bytes() == Arm('ours', 5000).history_bytes()


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(logger, 'SIZES', {'1k': 100, '20k': 200, '200k': 300, '1M': 400})
    monkeypatch.setattr(logger, 'WINDOWS', dict(stock=1, ours=1))
    report = measure_logger(quick=True)
    assert set(report.arms) == {
        f'{arm} {size}' for arm in ('stock', 'ours') for size in logger.SIZES
    }
    assert [(check.limit, check.at_least) for check in report.checks] == [
        (logger.MIN_SPEEDUP_AT_200K, True),
        (logger.MAX_GROWTH_1K_TO_1M, False),
        (0, False),
    ]
    assert report.checks[2].ok
    report.write(str(tmp_path / 'logger.json'))
    assert report.arms['stock 1M']['checkpoint_bytes'] > report.arms['ours 1M']['checkpoint_bytes']
