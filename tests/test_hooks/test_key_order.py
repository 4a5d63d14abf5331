"""Keys of log rows and of the message hub are in the order of the stock hooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.testing.toy import SPARSE, STOCK, config, train, with_evaluation


@pytest.mark.parametrize('hooks', [STOCK, SPARSE], ids=['stock', 'sparse'])
@pytest.mark.parametrize('timer', ['IterTimerHook', 'ThroughputMonitorHook'])
def test_rows_and_hub_have_the_keys_of_stock_in_order(
    tmp_path: Path, hooks: dict, timer: str
) -> None:
    rows = {}
    for arm, parts in (('stock', (STOCK, 'IterTimerHook')), ('ours', (hooks, timer))):
        cfg = with_evaluation(config(tmp_path / arm, parts[0]))
        cfg.default_hooks.timer = dict(type=parts[1])
        cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
        cfg.train_cfg.update(max_iters=25, val_interval=10)
        runner = train(cfg)
        (path,) = Path(runner.work_dir).rglob('scalars.json')
        found = [list(json.loads(line)) for line in path.read_text().splitlines()]
        kept = [[key for key in row if not key.startswith('tempo/')] for row in found]
        rows[arm] = [row for row in kept if row != ['step']]  # a row of the monitor alone
        order = list(runner.message_hub.log_scalars)
        rows[f'{arm} hub'] = [key for key in order if not key.startswith('train/tempo')]
    assert rows['ours'] == rows['stock']
    assert rows['stock'][0][:3] == ['lr', 'data_time', 'grad_norm']
    assert rows['ours hub'] == rows['stock hub']
