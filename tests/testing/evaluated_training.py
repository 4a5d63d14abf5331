"""Trainings that record the samples of each evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, METRICS

from tests.testing.noisy import noisy
from tests.testing.toy import ToyDataset, logged, with_evaluation

ALL = list(range(40))
POINTS = {tuple(point.tolist()): number for number, point in enumerate(ToyDataset().points)}


@METRICS.register_module()
class Fewer(BaseMetric):
    """A metric that is better for fewer samples, and records which they were."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [POINTS[tuple(point.tolist())] for point in data_batch['inputs']]

    def compute_metrics(self, results: list) -> dict:
        self.samples = results
        return dict(mIoU=100.0 - len(results), aAcc=float(sum(results)))


@HOOKS.register_module()
class Evaluations(Hook):
    """Writes iteration, samples and worker processes of each evaluation to a file."""

    def after_val(self, runner: Any) -> None:
        loader = runner.val_dataloader
        if torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        entry = dict(
            iter=runner.iter,
            samples=runner.val_evaluator.metrics[0].samples,
            length=len(loader),
            pids=sorted(one.pid for one in loader._pool._processes),
        )
        with open(f'{runner.work_dir}/evaluations', 'a') as file:
            file.write(json.dumps(entry) + '\n')


def evaluations(work: Path) -> list[dict]:
    return [json.loads(line) for line in (work / 'evaluations').read_text().splitlines()]


def kinds(work: Path) -> list[tuple[int, str]]:
    """Return the iteration of each evaluation, and 'full' or the size of its subset."""
    found = []
    for one in evaluations(work):
        is_full = sorted(one['samples']) == ALL
        found.append((one['iter'], 'full' if is_full else str(len(one['samples']))))
    return found


def evaluated(cfg: Config, workers: int = 0, **val_cfg: Any) -> Config:
    with_evaluation(cfg)
    cfg.val_dataloader.num_workers = workers
    cfg.val_cfg = dict(type='PrefetchValLoop', **val_cfg)
    cfg.val_evaluator = dict(type='Fewer')
    cfg.custom_hooks.append(dict(type='Evaluations'))
    return cfg


def often(work: Path, workers: int = 0, **options: Any) -> Config:
    """Configure eight evaluations in 15 iterations, of which the last is off the interval."""
    cfg = noisy(work, iterations=15)
    cfg.train_cfg.val_interval = 2
    val_cfg = dict(subset=10, full_interval=3)
    cfg = evaluated(cfg, workers, **val_cfg)
    cfg.merge_from_dict(options)
    return cfg


OFTEN = [
    (2, '10'),
    (4, '10'),
    (6, 'full'),
    (8, '10'),
    (10, '10'),
    (12, 'full'),
    (14, '10'),
    (15, 'full'),
]


def of_evaluations(work: Path) -> list[dict]:
    """Return the logged metrics of evaluations."""
    keys = {'mIoU', 'subset/mIoU', 'aAcc', 'subset/aAcc'}
    return [line for line in logged(work) if keys & set(line)]
