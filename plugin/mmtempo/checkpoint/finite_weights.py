"""Check whether the weights of a model are finite, on their device or as copies of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from mmtempo.device.host_copy import HostCopy


class NonFiniteWeights(ValueError):
    """A copy of the weights contains nan or infinity, so it is not published as a checkpoint.

    Args:
        names: Names of the bad tensors.
        iteration: Index of the iteration after which they were copied, from 0.
        ends_run: Whether the training ends because of this error.
    """

    def __init__(self, names: list[str], iteration: int, ends_run: bool) -> None:
        super().__init__(f'nan or infinity in {shortened(names)} of the model')
        self.names, self.iteration, self.ends_run = names, iteration, ends_run


class JudgedWeights:
    """Selection of the tensors of a model that must be finite.

    ====================  ==================================================
    tensor                must not contain
    ====================  ==================================================
    trainable parameter   nan, infinity
    frozen parameter      not checked (`requires_grad=False`)
    buffer                nan; infinity is legitimate in an attention mask
    ====================  ==================================================

    A tensor that contains nan or infinity at construction does so on purpose and is not checked
    later: averages of such a mask may be nan.

    Args:
        model: Model at the start of its training. Reading it waits for the device.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        initial = ((name, tensor, False) for name, tensor, _ in _floating(model))
        self._exempt = frozenset(WeightsLook(initial).bad())

    def rules(self, model: torch.nn.Module) -> dict[str, bool]:
        """Return, for the name of each checked tensor, whether it may contain infinity."""
        return {name: may_be_infinite for name, _, may_be_infinite in self._judged(model)}

    def look(self, model: torch.nn.Module) -> WeightsLook:
        """Start to check the current values of a model, without waiting for its device."""
        return WeightsLook(self._judged(model))

    def _judged(self, model: torch.nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
        for name, tensor, is_buffer in _floating(model):
            if name not in self._exempt and (is_buffer or tensor.requires_grad):
                yield name, tensor, is_buffer


class WeightsLook:
    """Flags of bad tensors, computed on the device and copied to the host.

    Args:
        tensors: Name, tensor, and whether the tensor may contain infinity.
    """

    def __init__(self, tensors: Iterator[tuple[str, Tensor, bool]]) -> None:
        names: dict[torch.device, list[str]] = {}
        flags: dict[torch.device, list[Tensor]] = {}
        for name, tensor, may_be_infinite in tensors:
            names.setdefault(tensor.device, []).append(name)
            flags.setdefault(tensor.device, []).append(_is_bad(tensor.detach(), may_be_infinite))
        self._copies = [(names[device], HostCopy(torch.stack(flags[device]))) for device in names]

    @property
    def arrived(self) -> bool:
        """Whether `bad` returns without waiting for the device."""
        return all(copy.arrived for _, copy in self._copies)

    def bad(self) -> list[str]:
        """Return the names of the bad tensors; wait for flags that have not arrived."""
        return [
            name
            for names, copy in self._copies
            for name, is_bad in zip(names, copy.values())
            if is_bad
        ]


def bad_copies(copies: Iterable[tuple[str, Any]], rules: Mapping[str, bool]) -> list[str]:
    """Return the names of bad tensors among host tensors.

    The sum of each tensor is computed first, which reads its memory once and needs no temporary.
    The values are compared only if the sum is not finite, which may also be an overflow.

    Args:
        copies: Names and tensors; values of other types are ignored.
        rules: For the name of each tensor to check, whether it may contain infinity.
    """
    return [
        name
        for name, copy in copies
        if name in rules
        and _is_comparable(copy)
        and not _widened(copy).sum().isfinite()
        and bool(_is_bad(copy, rules[name]))
    ]


def shortened(names: list[str]) -> str:
    """Return the first name, and how many others there are."""
    return f'{names[0]} and {len(names) - 1} more' if len(names) > 1 else names[0]


def _floating(model: torch.nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    for tensors, is_buffer in ((model.named_parameters(), False), (model.named_buffers(), True)):
        for name, tensor in tensors:
            if tensor.is_floating_point() and not is_lazy(tensor):
                yield name, tensor, is_buffer


def _is_comparable(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == 'cpu'
        and value.is_floating_point()
    )


def _is_bad(tensor: Tensor, may_be_infinite: bool) -> Tensor:
    tensor = _widened(tensor)
    return tensor.isnan().any() if may_be_infinite else tensor.isfinite().all().logical_not()


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.itemsize == 1 else tensor  # float8 has no `sum`
