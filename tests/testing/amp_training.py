"""Stock's mixed precision on a CPU, and options that tests of the optimizer wrappers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import nn

from tests.testing.sparse_training import Training

BY_NORM = dict(max_norm=0.5)
BY_VALUE = dict(type='value', clip_value=0.05)
HUGE = dict(init_scale=2.0**24, growth_interval=5)  # overflows float16 for some updates
DTYPES = dict(float16=torch.float16, bfloat16=torch.bfloat16)


class Counts(torch.optim.SGD):
    """SGD with a number in its state that is on the host."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.state[self.param_groups[0]['params'][0]]['count'] = 1


class StockOnCPU(AmpOptimWrapper):
    """Stock's `AmpOptimWrapper` without its check for a GPU."""

    def __init__(self, loss_scale: Any = 'dynamic', dtype: str = 'bfloat16', **kwargs: Any) -> None:
        OptimWrapper.__init__(self, **kwargs)
        self._scale_update_param = loss_scale if isinstance(loss_scale, float) else None
        options = loss_scale if isinstance(loss_scale, dict) else {}
        if self._scale_update_param is not None:
            options = dict(init_scale=loss_scale)
        self.loss_scaler = torch.amp.GradScaler('cpu', **options)
        self.cast_dtype = DTYPES[dtype]

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with OptimWrapper.optim_context(self, model), torch.autocast('cpu', self.cast_dtype):
            yield


def scale_of(training: Training) -> float:
    return training.wrapper.loss_scaler.get_scale()
