"""The measured training by one policy: its config, and the figures of its iterations."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.benchmarks.family_run import First, Watch, configure
from tests.testing.common import MINI


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [0.0]
    monkeypatch.setattr('time.perf_counter', lambda: seconds[0])
    return seconds


def train(watch: Watch, clock: list[float], waits: list[float], works: list[float]) -> Any:
    """Run iterations with a wait for the batch and work, until the watch ends the training."""
    first = First(watch)
    scale = torch.nn.Parameter(torch.ones(100))
    runner = SimpleNamespace(iter=0, model=torch.nn.Identity())
    for wait, work in zip(waits, works):
        clock[0] += wait
        first.before_train_iter(runner)
        (scale * torch.ones(100)).exp()
        clock[0] += work
        try:
            watch.after_train_iter(runner)
        except Exception as error:
            return error
        runner.iter += 1
    return None


def test_iterations_after_the_warm_up_count(clock: list[float]) -> None:
    watch = Watch(warm_up=2, iterations=3)
    # Numbers that doubles represent exactly; the warm-up is much slower.
    ended = train(
        watch, clock, [64.0, 64.0, 0.5, 0.5, 0.5, 64.0], [64.0, 64.0, 1.5, 1.5, 1.5, 64.0]
    )
    assert type(ended).__name__ == '_Finished'
    assert clock == [2 * 128.0 + 3 * 2.0]
    assert watch.figures(samples=4) == dict(
        it_per_s=0.5,
        samples_per_s=2.0,
        cv=0.0,
        data_share=0.25,
        # The values of the product that `exp` does not need, and its result.
        memory_bytes=2 * 4 * 100,
        samples=4,
        iterations=3,
    )


def test_unknown_number_of_samples_is_none(clock: list[float]) -> None:
    watch = Watch(warm_up=2, iterations=2)
    train(watch, clock, [1.0] * 4, [1.0] * 4)
    figures = watch.figures(samples=None)
    assert (figures['samples'], figures['samples_per_s']) == (None, None)
    assert figures['it_per_s'] == 0.5


def test_watch_surrounds_all_other_hooks() -> None:
    assert (First.priority, Watch.priority) == ('HIGHEST', 'LOWEST')


def test_config_has_no_evaluation_and_no_checkpoints(tmp_path: Path) -> None:
    args = argparse.Namespace(
        config=str(MINI),
        cfg_options={'resume': True, 'train_dataloader.batch_size': 3},
        tempo='grad_accum',
        launcher='none',
        local_rank=0,
        work_dir=str(tmp_path),
    )
    cfg = configure(args)
    for key in ('cfg', 'dataloader', 'evaluator'):
        assert cfg[f'val_{key}'] is None
        assert cfg[f'test_{key}'] is None
    assert cfg.default_hooks.checkpoint is None
    assert 'val_interval' not in cfg.train_cfg
    assert (cfg.load_from, cfg.resume) == (None, False)
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.optim_wrapper.accumulative_counts > 1
