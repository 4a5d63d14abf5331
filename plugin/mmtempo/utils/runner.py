"""Reach the parts of a Runner, also where they are wrapped."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict


def unwrapped(model: Any) -> torch.nn.Module:
    """Return the model inside a wrapper of mmengine, as for distributed training."""
    return model.module if is_model_wrapper(model) else model


def wrappers_of(runner: Any) -> list[Any]:
    """Return the optimizer wrappers of a runner; a runner has one or an `OptimWrapperDict`."""
    wrapper = runner.optim_wrapper
    return list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper]


def optimizers_of(runner: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a runner."""
    return [one.optimizer for one in wrappers_of(runner)]
