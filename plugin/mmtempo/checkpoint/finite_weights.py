"""Whether a model's weights are finite: on their device, and in the copies of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from mmtempo.device.host_copy import HostCopy


class NonFiniteWeights(ValueError):
    """A copy of the weights holds nan or infinity, so it is not published as a checkpoint.

    Args:
        names: The bad tensors.
        iteration: Number of the iteration after which they were copied, from 0.
        ends_run: Whether the training ends because of it.
    """

    def __init__(self, names: list[str], iteration: int, ends_run: bool) -> None:
        super().__init__(f'nan or infinity in {shortened(names)} of the model')
        self.names, self.iteration, self.ends_run = names, iteration, ends_run


class JudgedWeights:
    """The tensors of a model that must be finite, by name.

    ====================  ==============================================
    tensor                must not hold
    ====================  ==============================================
    trainable parameter   nan, infinity
    frozen parameter      not judged (`requires_grad=False`)
    buffer                nan; an attention mask may well hold infinity
    ====================  ==============================================

    A tensor that holds nan or infinity at construction does so on purpose, and is not judged
    later: averages of such a mask may well be nan.

    Args:
        model: The model at the start of its training; reading it waits for the device.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        begun = ((name, tensor, False) for name, tensor, _ in _floating(model))
        self._exempt = frozenset(WeightsLook(begun).bad())

    def rules(self, model: torch.nn.Module) -> dict[str, bool]:
        """Return, by name of each judged tensor, whether it may hold infinity."""
        return {name: may_be_infinite for name, _, may_be_infinite in self._judged(model)}

    def look(self, model: torch.nn.Module) -> WeightsLook:
        """Start to judge the model as it is now, without waiting for its device."""
        return WeightsLook(self._judged(model))

    def _judged(self, model: torch.nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
        for name, tensor, is_buffer in _floating(model):
            if name not in self._exempt and (is_buffer or tensor.requires_grad):
                yield name, tensor, is_buffer


class WeightsLook:
    """Flags of tensors that the device computes and copies to the host.

    Args:
        tensors: Name, tensor, and whether it may hold infinity.
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
        """Whether `bad` would not wait."""
        return all(copy.arrived for _, copy in self._copies)

    def bad(self) -> list[str]:
        """Return the names of the bad tensors; waits where the flags have not arrived."""
        return [
            name
            for names, copy in self._copies
            for name, is_bad in zip(names, copy.values())
            if is_bad
        ]


def bad_copies(copies: Iterable[tuple[str, Any]], rules: Mapping[str, bool]) -> list[str]:
    """Return the names of bad tensors among host tensors.

    Reads the memory of each tensor once, without a temporary; only where its sum is not finite,
    which may be an overflow, are its values compared.

    Args:
        copies: Names and tensors; other values are passed over.
        rules: By name of each tensor to be judged, whether it may hold infinity.
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
    """Return the first name and the number of the others."""
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
    return tensor.float() if tensor.itemsize == 1 else tensor  # float8 has no sum
