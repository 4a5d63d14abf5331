"""Toy model that trains in milliseconds in a real Runner, with each kind of logged value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmengine.runner import Runner

from tests.testing.common import next_name

STOCK = dict(runtime_info='RuntimeInfoHook', logger='LoggerHook')
SPARSE = dict(runtime_info='SparseRuntimeInfoHook', logger='SparseLoggerHook')


@DATASETS.register_module()
class ToyDataset(torch.utils.data.Dataset):
    """Dataset of 40 constant random vectors."""

    def __init__(self) -> None:
        self.points = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=self.points[index])


@MODELS.register_module()
class ToyModel(BaseModel):
    """Model that logs losses, an accuracy every fifth iteration, an integer tensor and a number.

    Args:
        nan_at: Iterations, from 1, whose loss is nan. Defaults to ().
        bad_gradient_at: Iterations, from 1, where only the gradient is infinite. Defaults to ().
        bad_input_at: Iterations, from 1, whose batch contains a nan. Defaults to ().
    """

    def __init__(
        self, nan_at: tuple = (), bad_gradient_at: tuple = (), bad_input_at: tuple = ()
    ) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        )
        self.nan_at, self.bad_gradient_at, self.bad_input_at = nan_at, bad_gradient_at, bad_input_at
        self.seen = 0

    def forward(self, inputs: list, data_samples: Any = None, mode: str = 'tensor') -> Any:
        batch = torch.stack(inputs)
        if mode == 'loss' and self.seen + 1 in self.bad_input_at:
            batch[0, 0] = float('nan')
        out = self.net(batch).float()
        if mode != 'loss':
            return [dict(out=value) for value in out]
        self.seen += 1
        self.count = (batch > 0).sum()
        loss = (out - batch.sum(1, keepdim=True)).square().mean()
        if self.seen in self.nan_at:
            loss = loss * float('nan')
        if self.seen in self.bad_gradient_at:
            out.register_hook(lambda grad: grad * float('inf'))
        losses = dict(loss_a=loss, loss_b=[0.1 * loss, out.square().mean()])
        if self.seen % 5 == 0:
            losses['acc'] = (out > 0).float().mean()
        return losses

    def parse_losses(self, losses: dict) -> tuple:
        total, log_vars = super().parse_losses(losses)
        log_vars.update(count=self.count, plain=0.5 * (self.seen % 10))
        return total, log_vars

    def val_step(self, data: dict) -> list:
        return self(**self.data_preprocessor(data), mode='predict')


@METRICS.register_module()
class Counted(BaseMetric):
    """Metric that counts samples."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list) -> dict:
        return dict(seen=float(sum(results)))


def config(work_dir: Path, hooks: dict, **options: Any) -> Config:
    """Return the config of a training in batches of 2; `hooks` has the types of default hooks."""
    loader = dict(batch_size=2, num_workers=0, dataset=dict(type='ToyDataset'))
    cfg = Config(
        dict(
            model=dict(type='ToyModel'),
            work_dir=str(work_dir),
            experiment_name=next_name(),
            train_dataloader=dict(loader, sampler=dict(type='InfiniteSampler', shuffle=True)),
            optim_wrapper=dict(
                type='OptimWrapper', optimizer=dict(type='SGD', lr=0.002, momentum=0.9)
            ),
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=500, val_interval=100000),
            default_hooks=dict(
                runtime_info=dict(type=hooks['runtime_info']),
                logger=dict(type=hooks['logger'], interval=10),
                checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=250),
            ),
            log_processor=dict(by_epoch=False),
            visualizer=dict(
                type='Visualizer', name=next_name(), vis_backends=[dict(type='LocalVisBackend')]
            ),
            randomness=dict(seed=3),
            custom_imports=dict(imports=['mmtempo'], allow_failed_imports=False),
            default_scope='mmengine',
        )
    )
    cfg.merge_from_dict(options)
    return cfg


def by_epoch(cfg: Config, epochs: int) -> Config:
    """Change a config to a training by epoch, with 20 iterations each."""
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs)
    cfg.log_processor.by_epoch = True
    cfg.default_hooks.checkpoint.update(by_epoch=True, interval=10)
    return cfg


def with_evaluation(cfg: Config) -> Config:
    cfg.val_dataloader = dict(
        batch_size=2,
        num_workers=0,
        dataset=dict(type='ToyDataset'),
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    cfg.val_cfg = dict(type='ValLoop')
    cfg.val_evaluator = dict(type='Counted')
    return cfg


def train(cfg: Config) -> Runner:
    runner = Runner.from_cfg(cfg)
    runner.train()
    return runner


def logged(work_dir: object) -> list[dict]:
    """Return the rows that the visualizer wrote, without times."""
    (path,) = Path(str(work_dir)).rglob('scalars.json')
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: line[key] for key in line if 'time' not in key} for line in lines]


def text_lines(work_dir: object) -> list[str]:
    """Return the log lines of the training, without dates and times."""
    (path,) = Path(str(work_dir)).rglob('*.log')
    lines = [line for line in path.read_text().splitlines() if '(train)' in line]
    cut = re.compile(r'^.*INFO - |eta: [^a-z]*(?= )|time: [\d.]*')
    return [cut.sub('', line) for line in lines]


def weights(runner: Runner) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in runner.model.state_dict().items()}
