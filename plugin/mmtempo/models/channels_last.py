"""Convolutions with channels last, and the state of optimizers to match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CHANNELS_LAST = torch.channels_last


def take_channels_last(model: nn.Module, entrance: nn.Module) -> tuple[int, Callable[[], None]]:
    """Lay out convolutions, and what they are given, with channels last.

    Parameters stay the same objects with the same values; other ones, as deformable convolutions
    or embeddings of positions have them, may be viewed in ways that only one layout allows, and
    are left alone.

    Args:
        model: All of its 2D convolutions get the layout.
        entrance: The part of it whose arguments get the layout, if they have four dimensions;
            what follows hands it on.

    Returns:
        How many weights got it, and what takes that of the arguments back.
    """
    count = 0
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.weight.data = module.weight.data.contiguous(memory_format=CHANNELS_LAST)
            count += 1
    return count, entrance.register_forward_pre_hook(_convert, with_kwargs=True).remove


def match_state(optimizer: torch.optim.Optimizer) -> int:
    """Give an optimizer's state the layout of its parameters; how many tensors that were.

    A state that was saved in another layout is loaded in that one. Fused optimizers go through
    parameters and state as they lie in memory, and would mix them up, or refuse them.
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
    """A state dict of optimizers without channels last, for whoever loads it; a new one.

    Args:
        state: Nested dicts; tensors in it are left as they are.
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
