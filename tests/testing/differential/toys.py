"""Dataset, model, metric and optimizer wrapper of the compared trainings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.evaluator import BaseMetric
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import DATA_SAMPLERS, DATASETS, METRICS, MODELS, OPTIM_WRAPPERS, VISBACKENDS
from mmengine.structures import BaseDataElement
from mmengine.visualization import LocalVisBackend
from torch import nn

WIDTH = 4
# Notes of users' hooks and models, in the order of the events; cleared before each run.
NOTES: list[tuple] = []


def note(*values: Any) -> None:
    """Record values that must be equal with stock parts and with ours."""
    NOTES.append(values)


@DATASETS.register_module()
class DiffDataset(torch.utils.data.Dataset):
    """Dataset of constant random vectors plus `shift`.

    Args:
        samples: Number of samples.
        with_samples: Whether a sample has `data_samples`. Defaults to False.
        metainfo: Kind of the metainfo; None: no attribute `metainfo`. Defaults to None.
    """

    def __init__(
        self, samples: int, with_samples: bool = False, metainfo: str | None = None
    ) -> None:
        self.points = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(7))
        self.with_samples, self.shift = with_samples, 0.0
        if metainfo is not None:
            self.metainfo = _metainfo(metainfo)

    def set_epoch(self, epoch: int) -> None:
        self.shift = 0.5 * epoch

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict:
        sample = dict(inputs=self.points[index] + self.shift)
        if self.with_samples:
            sample['data_samples'] = BaseDataElement(metainfo=dict(index=index))
        return sample


def _metainfo(kind: str) -> dict:
    found: dict[str, Any] = dict(classes=('road', 'sky'), palette=[[1, 2, 3], [4, 5, 6]])
    if kind == 'config':
        found['part'] = ConfigDict(a=1, b=ConfigDict(c=(2, 3)))
    elif kind == 'numpy':
        found['names'] = np.array(['road', 'sky'])
    elif kind == 'nested':
        found['counts'] = dict(each=np.arange(3), share=np.float32(0.5))
    return found


@DATA_SAMPLERS.register_module()
class GrowingBatchSampler:
    """User's batch sampler, with batches of 2, 3, ..., `batch_size` + 1 samples, then of 2 again.

    Args:
        sampler: Sampler of the indices.
        batch_size: Size of the largest batch minus 1.
        drop_last: Whether an incomplete batch is dropped. Defaults to False.
    """

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch, size = [], 2
        for index in self.sampler:
            batch.append(index)
            if len(batch) == size:
                yield batch
                batch, size = [], 2 if size >= self.batch_size + 1 else size + 1
        if len(batch) > 1 and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        left, size, count = len(self.sampler), 2, 0
        while left >= size:
            left, count = left - size, count + 1
            size = 2 if size >= self.batch_size + 1 else size + 1
        return count + (left > 1 and not self.drop_last)


@MODELS.register_module()
class DiffModel(BaseModel):
    """Model whose step takes less than a millisecond.

    Args:
        outputs: Kind of the values that a step returns. Defaults to 'plain'.
        state: Kind of the parameters and buffers. Defaults to 'plain'.
        lists_only: Whether `inputs` must be a list. Defaults to False.
        dropout: Probability of the dropout on the inputs. Defaults to 0.0.
    """

    def __init__(
        self,
        outputs: str = 'plain',
        state: str = 'plain',
        lists_only: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1)
        )
        self.outputs, self.state, self.lists_only, self.seen = outputs, state, lists_only, 0
        self.dropout = dropout
        if state == 'odd':
            self.tied = self.net[0]
            self.turned = nn.Parameter(torch.rand(3, 5).t())
            self.frozen = nn.Parameter(torch.rand(4), requires_grad=False)
            self.register_buffer('empty', torch.empty(0, 7))
            self.register_buffer('number', torch.tensor(3))
            self.register_buffer('low', torch.rand(5).bfloat16())
            self.register_buffer('hidden', torch.ones(2), persistent=False)
        elif state == 'moving':
            self.key = nn.Parameter(torch.ones(WIDTH, WIDTH), requires_grad=False)
        elif state == 'masked':
            self.register_buffer('mask', torch.full((3, 3), float('-inf')).triu(1))
        elif state == 'nan_buffer':
            self.register_buffer('unset', torch.full((2,), float('nan')))
        elif state == 'infinite_frozen':
            self.frozen = nn.Parameter(torch.tensor([1.0, float('inf')]), requires_grad=False)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        is_tensor = isinstance(inputs, torch.Tensor)
        batch = inputs if is_tensor and not self.lists_only else torch.stack(inputs)
        if self.training and len(batch) == 1:
            batch = batch.repeat(2, 1)  # batch norm needs two samples; the last batch may have one
        if mode == 'loss' and self.state == 'moving':
            self.key.data.lerp_(self.net[0].weight.data, 0.3)
        out = self.net(nn.functional.dropout(batch, self.dropout, self.training)).float()
        if mode != 'loss':
            return [dict(out=value) for value in out]
        self.seen += 1
        loss = (out - batch.sum(1, keepdim=True)).square().mean()
        losses = dict(loss_a=loss, loss_b=[0.1 * loss, out.square().mean()])
        if self.state == 'odd':
            losses['loss_turned'] = self.turned.square().mean()
        if self.outputs == 'sometimes' and self.seen % 3 == 0:
            losses['acc'] = (out > 0).float().mean()
        return losses

    def parse_losses(self, losses: dict) -> tuple:
        total, log_vars = super().parse_losses(losses)
        if self.outputs in ('numbers', 'odd'):
            log_vars.update(plain=0.5 * self.seen, whole=self.seen, scalar=np.float32(self.seen))
        if self.outputs == 'odd':
            log_vars.update(
                one=torch.tensor([float(self.seen)]),
                array=np.array([0.25 * self.seen]),
                double=torch.tensor(1 / 3, dtype=torch.float64),
                count=torch.tensor(self.seen),
                half=torch.tensor(0.1, dtype=torch.bfloat16),
                lr_like=0.125,
                my_lr=0.25,
            )
        if self.outputs == 'shared':  # a tensor that the model updates in place in each iteration
            if not hasattr(self, 'running'):
                self.running = torch.zeros(())
            self.running += 1
            log_vars['running'] = self.running
        return total, log_vars

    def val_step(self, data: dict) -> list:
        return self(**self.data_preprocessor(data), mode='predict')


@METRICS.register_module()
class DiffMetric(BaseMetric):
    """Metric with scores of the outputs and of the iteration."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [float(sample['out'].detach().sum()) for sample in data_samples]

    def compute_metrics(self, results: list) -> dict:
        step = MessageHub.get_current_instance().get_info('iter', 0) + 1
        note('evaluated', step, len(results))
        acc = (0.2, 0.5, 0.3, 0.7, 0.7, 0.1)[step % 6]
        return {
            'acc': acc,
            'val_loss': (3.0, 4.0, 2.0, 1.0, 5.0)[step % 5],
            'part/acc': 1 - acc,
            'mean': float(np.mean(results)),
        }


@OPTIM_WRAPPERS.register_module()
class DiffAmpOptimWrapper(AmpOptimWrapper):
    """Stock's `AmpOptimWrapper` for the CPU, without its check for a GPU."""

    def __init__(self, dtype: str, loss_scale: dict, **kwargs: Any) -> None:
        OptimWrapper.__init__(self, **kwargs)
        self._scale_update_param = None
        self.loss_scaler = torch.amp.GradScaler('cpu', **loss_scale)
        self.cast_dtype = getattr(torch, dtype)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with OptimWrapper.optim_context(self, model), torch.autocast('cpu', self.cast_dtype):
            yield


@VISBACKENDS.register_module()
class DiffVisBackend(LocalVisBackend):
    """Second visualizer backend, which notes each call."""

    def add_scalar(self, name: str, value: Any, step: int = 0, **kwargs: Any) -> None:
        note('add_scalar', name, step)

    def add_scalars(self, scalar_dict: dict, step: int = 0, *args: Any, **kwargs: Any) -> None:
        names = [key for key in scalar_dict if 'time' not in key and 'tempo/' not in key]
        note('add_scalars', tuple(names), step)

    def add_config(self, config: Any, **kwargs: Any) -> None:
        note('add_config')


def diff_spread(self: HistoryBuffer, window_size: int = 3) -> Any:
    """Return the range of the last values; a statistic that a user registers."""
    return self._log_history[-window_size:].max() - self._log_history[-window_size:].min()


def register_statistic(is_used: bool) -> None:
    """Register or remove the statistic: saved histories name all registered statistics."""
    HistoryBuffer._statistics_methods.pop(diff_spread.__name__, None)
    if is_used:
        HistoryBuffer.register_statistics(diff_spread)


def digest(batch: Any) -> str:
    """Return a hash of the inputs of a batch, which are a tensor or a list."""
    inputs = batch['inputs']
    rows = inputs if isinstance(inputs, torch.Tensor) else torch.stack(list(inputs))
    return hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:12]
