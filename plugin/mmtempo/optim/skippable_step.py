"""Optimizer steps that a number on the device may cancel, without the host reading it.

A cancelled step changes nothing: parameters, state and step counts keep every bit. Three ways:

- Fused optimizers of torch look at the flag in their own kernel.
- Others whose whole state lies with the flag are copied, stepped, and each tensor is chosen
  from before or after on the device. That costs a copy of parameters and state for the
  time of the step, and one launch a tensor: where an optimizer has `fused`, that is cheaper.
- Where a part of the state is on the host (the step count of Adam on CUDA), the host has to
  read the flag, as torch's own `GradScaler` does.

State that only comes into being during the step has the host read the flag once, afterwards.
What cannot be undone is what an optimizer keeps outside of `state` and `param_groups`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

PLAIN = (torch.Tensor, torch.nn.Parameter)


def step_unless(bad: Tensor, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
    """Take an optimizer step that has no effect at all where `bad`, one number, is not zero.

    Arguments after the optimizer are those of its `step`, whose result is returned.
    """
    if is_fused(optimizer):
        before = _before_growth(optimizer)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        # The kernels skip at exactly 1.
        optimizer.found_inf = bad.reshape(()).bool().float()  # type: ignore[attr-defined]
        try:
            result = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        if before is not None:
            before.undo_growth(bad)
        return result
    if _lies_on(bad.device, optimizer):
        before = _Before(optimizer)
        before.copy()
        result = optimizer.step(*args, **kwargs)
        before.undo(bad)
        return result
    return None if bad.item() else optimizer.step(*args, **kwargs)


def decides_on_device(optimizer: Optimizer) -> bool:
    """Whether `step_unless` needs no host, as far as the state of the optimizer tells by now."""
    if is_fused(optimizer):
        return True
    devices = {param.device for group in optimizer.param_groups for param in group['params']}
    return len(devices) == 1 and _lies_on(devices.pop(), optimizer)


def is_fused(optimizer: Optimizer) -> bool:
    """Whether the step itself looks at `found_inf`, as torch's fused optimizers do."""
    return (
        getattr(optimizer, '_step_supports_amp_scaling', False)
        # An older contract, which leaves the attribute unread.
        and 'grad_scaler' not in inspect.signature(optimizer.step).parameters
    )


class GuardedGradScaler(torch.amp.GradScaler):
    """Loss scaling in which the host never reads whether an update overflowed.

    It takes the arguments of `torch.amp.GradScaler`, and its states are the same.
    """

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if not self.is_enabled() or not is_fused(optimizer):
            return super().step(optimizer, *args, **kwargs)
        # A fused SGD whose first step overflows would go on with a momentum that is
        # uninitialised memory.
        before = _before_growth(optimizer)
        result = super().step(optimizer, *args, **kwargs)
        found = self._found_inf_per_device(optimizer).values()
        if before is not None and found:
            before.undo_growth(_total(found))
        return result

    def _maybe_opt_step(
        self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        found = _total(optimizer_state['found_inf_per_device'].values())
        return step_unless(found, optimizer, *args, **kwargs)


class _Before:
    """An optimizer before a step: what there is and, where it was copied, which values it has."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {key: dict(entry) for key, entry in optimizer.state.items()}
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._values = _values(optimizer)
        self._copies: list[Tensor] = []

    @torch.no_grad()
    def copy(self) -> None:
        tensors = list(self._values.values())
        self._copies = [torch.empty_like(tensor) for tensor in tensors]
        if tensors:
            torch._foreach_copy_(self._copies, tensors)

    def undo(self, bad: Tensor) -> None:
        """Take back everything where `bad` is not zero; needs the copies."""
        after = _values(self._optimizer)
        if self._has_new_parts(after):
            if bad.item():
                self._restore()
            return
        cancelled = bad.reshape(()).bool()
        with torch.no_grad():
            for key, copy in zip(self._values, self._copies):
                torch.where(cancelled, copy, after[key], out=after[key])

    def undo_growth(self, bad: Tensor) -> None:
        """The same for a step that left alone what there was, but made new state."""
        if _values(self._optimizer).keys() != self._values.keys() and bad.item():
            self._restore()

    def _has_new_parts(self, after: dict) -> bool:
        """Whether more happened than that tensors got new values."""
        groups = self._optimizer.param_groups
        return (
            after.keys() != self._values.keys()
            or any(not _alike(value, after[key]) for key, value in self._values.items())
            or any(not _same_options(*pair) for pair in zip(self._groups, groups))
        )

    def _restore(self) -> None:
        with torch.no_grad():
            for tensor, copy in zip(self._values.values(), self._copies):
                tensor.copy_(copy)
        state = self._optimizer.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        for kept, live in (
            *((entry, state[key]) for key, entry in self._state.items()),
            *zip(self._groups, self._optimizer.param_groups),
        ):
            live.clear()
            live.update(kept)


def _before_growth(optimizer: Optimizer) -> _Before | None:
    """What there is, where a step will make state for a parameter that has none yet."""
    params = (param for group in optimizer.param_groups for param in group['params'])
    if any(param.grad is not None and param not in optimizer.state for param in params):
        return _Before(optimizer)
    return None


def _values(optimizer: Optimizer) -> dict[tuple[int, str], Any]:
    """What a step may change: parameters that have a gradient, and all state."""
    params = (param for group in optimizer.param_groups for param in group['params'])
    values: dict[tuple[int, str], Any] = {
        (id(param), ''): param for param in params if param.grad is not None
    }
    for key, entry in optimizer.state.items():
        for name, value in entry.items():
            if value is not None:
                values[id(key), name] = value
    return values


def _lies_on(device: torch.device, optimizer: Optimizer) -> bool:
    """Whether all that a step may change is plain tensors on a device."""
    # Another optimizer inside (ZeroRedundancyOptimizer) has a state that is not seen here.
    if any(isinstance(part, Optimizer) for part in vars(optimizer).values()):
        return False
    if not all(isinstance(entry, dict) for entry in optimizer.state.values()):
        return False
    values = _values(optimizer).values()
    return all(type(value) in PLAIN and value.device == device for value in values)


def _alike(one: Tensor, other: Any) -> bool:
    return (
        isinstance(other, torch.Tensor)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
    )


def _same_options(one: dict, other: dict) -> bool:
    """Whether a parameter group is as it was; an option that is a tensor may not be read."""
    return one.keys() == other.keys() and all(
        value is other[name] or (not isinstance(value, torch.Tensor) and value == other[name])
        for name, value in one.items()
    )


def _total(found: Iterable[Tensor]) -> Tensor:
    """The sum of one flag per device, on the first of them."""
    first, *others = found
    for other in others:
        first = first + other.to(first.device, non_blocking=True)
    return first
