"""Recompute the activations of parts of a model instead of keeping them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mmtempo.utils.modules import opened

STACKS = ('stages', 'layers')


def checkpoint_module(module: nn.Module) -> Callable[[], None]:
    """Make a module keep only its inputs for the backward pass; return a function that undoes it.

    The class of the module is replaced by a subclass, as torch's `parametrize` and `fully_shard`
    do: module, parameters, hooks and names in the state dict stay the same. A deep or pickled copy
    has the original class. No public means of torch or mmseg does the same: forward hooks cannot
    skip a forward pass, an assigned `forward` is part of copies, a wrapper changes names, and
    `with_cp` of mmseg's blocks is reentrant, so that batch norms update their statistics twice.

    It uses torch's non-reentrant checkpoint, which supports inputs without gradient and DDP with
    `find_unused_parameters`. Batch norms update their running statistics once, in the forward
    pass; inside `torch.compile` they update them twice, as with torch's own.

    Args:
        module: A module that is not checkpointed yet, and whose `forward` is that of its class.
    """
    own: Any = type(module)
    if issubclass(own, _Checkpointed):
        raise ValueError(f'{own.__name__} is checkpointed already')
    if 'forward' in vars(module):
        raise ValueError(
            f'the forward of this {own.__name__} has been replaced, as `activation_checkpointing` '
            'at the top level of a config does; use that or ModelTuningHook, not both'
        )
    with_cp: Any = getattr(module, 'with_cp', None)
    module.__class__ = _checkpointed_class(own)
    if with_cp:
        module.with_cp = False  # type: ignore[assignment]

    def undo() -> None:
        module.__class__ = own
        if with_cp:
            module.with_cp = with_cp

    return undo


def find_units(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model that are worth checkpointing, by name.

    These are the first of the following that exist:

    1. The outermost modules whose class supports `with_cp`, as the blocks of mmseg's Swin,
       ResNet, MiT and HRNet.
    2. The stages of the backbone, or of a backbone in it: the items of `stages` or `layers`, or
       `layer1`, `layer2`, ...
    3. Children of the backbone that have parameters.

    Args:
        model: The model, without a wrapper for distributed training.
    """
    units = dict(_outermost(model, ''))
    backbone = getattr(model, 'backbone', None)
    if units or not isinstance(backbone, nn.Module):
        return units
    inner = getattr(backbone, 'backbone', None)
    if isinstance(inner, nn.Module):
        units = _stages(inner, 'backbone.backbone')
    units = units or _stages(backbone, 'backbone')
    units = units or {f'backbone.{name}': child for name, child in backbone.named_children()}
    return {
        name: unit
        for name, unit in opened(units.items())
        if next(unit.parameters(), None) is not None
    }


class _Checkpointed(nn.Module):
    """The part of a checkpointed class that precedes the original class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        if not torch.compiler.is_compiling():  # the compiler does not support `context_fn`
            norms = [module for module in self.modules() if _updates_statistics(module)]
            if norms:
                kwargs['context_fn'] = lambda: (nullcontext(), _FrozenStatistics(norms))
        return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts: Any = super().__reduce_ex__(protocol)
        return (_blank, (type(self).__mro__[2],), *parts[2:])


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


@functools.cache
def _checkpointed_class(own: Any) -> Any:
    metaclass: Any = type(own)
    about = f'{own.__name__} that keeps only its inputs for the backward pass.'
    members = dict(__module__=__name__, __doc__=about)
    return metaclass(f'Checkpointed{own.__name__}', (_Checkpointed, own), members)


class _FrozenStatistics:
    """A context in which batch norms leave their running statistics and counts unchanged.

    It is active during the recomputation. The batch norms still update buffers there: autograd
    must save the same tensors as in the forward pass.
    """

    def __init__(self, norms: list[Any]) -> None:
        self._norms = norms
        self._before: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> None:
        self._before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        counts: dict[torch.device, torch.Tensor] = {}
        for norm, _, count in self._before:
            norm.momentum = 0.0
            norm.num_batches_tracked = counts.setdefault(count.device, torch.zeros_like(count))

    def __exit__(self, *error: Any) -> None:
        for norm, momentum, count in self._before:
            norm.momentum, norm.num_batches_tracked = momentum, count
        self._before = []


def _updates_statistics(module: nn.Module) -> bool:
    return (
        isinstance(module, _BatchNorm)
        and module.training
        and module.track_running_stats
        and module.num_batches_tracked is not None
    )


def _outermost(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    own: Any = type(module)
    if hasattr(module, 'with_cp') and _forward_reads_with_cp(own):
        yield name, module
        return
    for inner, child in module.named_children():
        yield from _outermost(child, f'{name}.{inner}' if name else inner)


@functools.cache
def _forward_reads_with_cp(cls: type) -> bool:
    """Return whether `forward` reads `with_cp`; a backbone only passes it on to its blocks."""
    forwards = (vars(base)['forward'] for base in cls.__mro__ if 'forward' in vars(base))
    codes = (getattr(inspect.unwrap(forward), '__code__', None) for forward in forwards)
    return any(code is not None and 'with_cp' in code.co_names for code in codes)


def _stages(module: nn.Module, name: str) -> dict[str, nn.Module]:
    for key in STACKS:
        stack = getattr(module, key, None)
        if isinstance(stack, (nn.ModuleList, nn.Sequential)):
            return {f'{name}.{key}.{inner}': child for inner, child in stack.named_children()}
    children = module.named_children()
    return {f'{name}.{key}': child for key, child in children if re.fullmatch(r'layer\d+', key)}
