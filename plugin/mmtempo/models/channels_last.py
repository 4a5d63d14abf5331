"""Lay out convolutions, and the state of their optimizers, with channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CHANNELS_LAST = torch.channels_last


def take_channels_last(model: nn.Module, entrance: nn.Module) -> tuple[int, Callable[[], None]]:
    """Lay out 2D convolutions and their inputs with channels last.

    Parameters stay the same objects with the same values. Parameters of other modules, as
    deformable convolutions and position embeddings, may be viewed in ways that only the usual
    layout allows, and are left unchanged.

    Args:
        model: The model whose 2D convolutions get the layout.
        entrance: The module of the model whose arguments get the layout, if they have four
            dimensions; later modules preserve it.

    Returns:
        The number of weights that got the layout, and a function that stops the conversion of
        arguments.
    """
    count = 0
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.weight.data = module.weight.data.contiguous(memory_format=CHANNELS_LAST)
            count += 1
    return count, entrance.register_forward_pre_hook(_convert, with_kwargs=True).remove


def match_state(optimizer: torch.optim.Optimizer) -> int:
    """Give an optimizer's state the layout of its parameters; return the number of tensors.

    Loading a checkpoint keeps the layout that the state was saved in. Fused optimizers process
    parameters and state in the order of memory, so different layouts would pair wrong elements,
    or raise an error.
    """
    count = 0
    for parameter, state in optimizer.state.items():
        for key, value in state.items() if isinstance(state, dict) else ():
            if (
                isinstance(value, Tensor)
                and value.shape == parameter.shape
                and value.stride() != parameter.stride()
            ):
                like = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                state[key] = like.copy_(value)
                count += 1
    return count


def in_usual_layout(state: Any) -> Any:
    """Return a new state dict of optimizers, with every tensor in the usual layout.

    Args:
        state: The state dict, of nested dicts; it is not changed.
    """
    if type(state) is dict:
        return {key: in_usual_layout(value) for key, value in state.items()}
    is_image = isinstance(state, Tensor) and state.dim() == 4
    if is_image and state.is_contiguous(memory_format=CHANNELS_LAST):
        return state.contiguous()
    return state


def _convert(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return tuple(map(_converted, args)), {key: _converted(arg) for key, arg in kwargs.items()}


def _converted(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=CHANNELS_LAST)
    return value
