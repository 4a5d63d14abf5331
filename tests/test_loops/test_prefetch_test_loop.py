"""The test loop evaluates each sample once."""

from __future__ import annotations

from pathlib import Path

from mmengine.runner import Runner

from tests.testing.loader_hooks import LOOPS
from tests.testing.toy import STOCK, config, with_evaluation


def test_each_sample_counts_once_while_a_hook_reads_the_loader(tmp_path: Path) -> None:
    seen = {}
    for arm, loops in LOOPS.items():
        cfg = with_evaluation(config(tmp_path / arm, STOCK))
        cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
        cfg.test_cfg = dict(type=loops[3])
        cfg.custom_hooks = [
            dict(type='ReadsTheLoader', stage='after_test_iter', batches=1, split='test')
        ]
        seen[arm] = Runner.from_cfg(cfg).test()
    assert seen['ours'] == seen['stock'] == dict(seen=40.0)
