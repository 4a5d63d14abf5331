"""Models that train under a `StepTimer`, and the order of the parts that it marks."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch import nn

from mmtempo.monitor.step_timer import StepTimer

BEFORE = ['to_device', 'forward']
STEP = [*BEFORE, 'backward', 'step']


class Toy(BaseModel):
    """Linear model; a `factor` of 0 raises an error, an infinite one makes the loss infinite."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        if self.factor == 0:
            raise ArithmeticError
        return dict(loss=self.line(inputs).square().mean() * self.factor)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


def batch() -> dict:
    return dict(inputs=torch.ones(2, 3))


class MarkLog(list):
    """Stand-in for a `Timeline` that keeps the marked phases in order."""

    @property
    def log(self) -> MarkLog:
        return self

    def phase(self, name: str) -> str:
        return name

    def clock(self) -> str:
        return ''

    def __iadd__(self, mark: Any) -> MarkLog:  # type: ignore[misc]
        self.append(mark[0])
        return self


class TimedModel:
    """Model that trains under a `StepTimer`, and the marks of its last step."""

    def __init__(self, model: Any, wrapper: Any, optimizers: list | None = None) -> None:
        self.model, self.wrapper = model, wrapper
        self.marks: Any = MarkLog()
        self.timer = StepTimer(self.marks)
        assert self.timer.install(model, optimizers or [wrapper.optimizer])

    def step(self) -> list[str]:
        self.marks.clear()
        self.timer.begin()
        self.model.train_step(batch(), self.wrapper)
        self.timer.end()
        return list(self.marks)


def toy(wrapper: type = OptimWrapper, **options: Any) -> TimedModel:
    model = Toy()
    return TimedModel(model, wrapper(optimizer=sgd(model), **options))


def hooked_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules with a forward hook or pre-hook."""
    return [one for one in model.modules() if one._forward_hooks or one._forward_pre_hooks]


class Separate(nn.Module):
    """Wrapper that is never called, like MMSeparateDistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def train_step(self, *args: Any) -> Any:
        return self.module.train_step(*args)  # type: ignore[operator]
