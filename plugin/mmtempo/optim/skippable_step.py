"""Optimizer steps that a flag on the device can cancel, without the host reading the flag.

A cancelled step changes nothing: parameters, state and step counts keep every bit. There are
three ways, by optimizer:

- Fused optimizers of torch read the flag in their own kernel.
- If the whole state of an optimizer is on the device of the flag, parameters and state are
  copied, the step is taken, and each tensor is selected from before or after on the device.
  That costs memory for a copy of parameters and state during the step, and one kernel launch a
  tensor: if the optimizer has `fused`, use that.
- If a part of the state is on the host (the step count of Adam on CUDA), the host has to read
  the flag, as torch's own `GradScaler` does.

If a step creates state, the host reads the flag once, after that step. What an optimizer keeps
outside of `state` and `param_groups` cannot be undone.
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
    """Take an optimizer step that has no effect if `bad`, a tensor of one number, is not zero.

    Arguments after the optimizer are passed to its `step`, whose result is returned.
    """
    if is_fused(optimizer):
        before = _before_new_state(optimizer)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        # The kernels skip at exactly 1.
        optimizer.found_inf = bad.reshape(()).bool().float()  # type: ignore[attr-defined]
        try:
            result = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        if before is not None:
            before.undo_new_state(bad)
        return result
    if _is_on(bad.device, optimizer):
        before = _OptimizerState(optimizer)
        before.copy()
        result = optimizer.step(*args, **kwargs)
        before.undo(bad)
        return result
    return None if bad.item() else optimizer.step(*args, **kwargs)


def decides_on_device(optimizer: Optimizer) -> bool:
    """Return whether `step_unless` needs no synchronization, judged by the state so far."""
    if is_fused(optimizer):
        return True
    devices = {param.device for group in optimizer.param_groups for param in group['params']}
    return len(devices) == 1 and _is_on(devices.pop(), optimizer)


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether the step itself reads `found_inf`, as torch's fused optimizers do."""
    return (
        getattr(optimizer, '_step_supports_amp_scaling', False)
        # A step that takes the scaler follows an older contract, and ignores the attribute.
        and 'grad_scaler' not in inspect.signature(optimizer.step).parameters
    )


class GuardedGradScaler(torch.amp.GradScaler):
    """A gradient scaler with which the host never reads whether an update overflowed.

    Its arguments and its state dict are those of `torch.amp.GradScaler`.
    """

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        if not self.is_enabled() or not is_fused(optimizer):
            return super().step(optimizer, *args, **kwargs)
        # A fused SGD whose first step overflows leaves its new momentum uninitialized, and
        # would use it in the next step.
        before = _before_new_state(optimizer)
        result = super().step(optimizer, *args, **kwargs)
        found = self._found_inf_per_device(optimizer).values()
        if before is not None and found:
            before.undo_new_state(_total(found))
        return result

    def _maybe_opt_step(
        self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        found = _total(optimizer_state['found_inf_per_device'].values())
        return step_unless(found, optimizer, *args, **kwargs)


class _OptimizerState:
    """The state of an optimizer before a step: its structure and, after `copy`, its values."""

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
        """Undo the step if `bad` is not zero; needs the copies."""
        after = _values(self._optimizer)
        if self._has_changed_structure(after):
            if bad.item():
                self._restore()
            return
        cancelled = bad.reshape(()).bool()
        with torch.no_grad():
            for key, copy in zip(self._values, self._copies):
                torch.where(cancelled, copy, after[key], out=after[key])

    def undo_new_state(self, bad: Tensor) -> None:
        """Remove the state that the step created if `bad` is not zero.

        For a step that has already left existing values alone: it needs no copies.
        """
        if _values(self._optimizer).keys() != self._values.keys() and bad.item():
            self._restore()

    def _has_changed_structure(self, after: dict) -> bool:
        """Return whether the step did more than give tensors new values."""
        groups = self._optimizer.param_groups
        return (
            after.keys() != self._values.keys()
            or any(not _is_like(value, after[key]) for key, value in self._values.items())
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


def _before_new_state(optimizer: Optimizer) -> _OptimizerState | None:
    """Return the present state if the next step will create state for a parameter."""
    params = (param for group in optimizer.param_groups for param in group['params'])
    if any(param.grad is not None and param not in optimizer.state for param in params):
        return _OptimizerState(optimizer)
    return None


def _values(optimizer: Optimizer) -> dict[tuple[int, str], Any]:
    """Return what a step may change: parameters with a gradient, and all state."""
    params = (param for group in optimizer.param_groups for param in group['params'])
    values: dict[tuple[int, str], Any] = {
        (id(param), ''): param for param in params if param.grad is not None
    }
    for key, entry in optimizer.state.items():
        for name, value in entry.items():
            if value is not None:
                values[id(key), name] = value
    return values


def _is_on(device: torch.device, optimizer: Optimizer) -> bool:
    """Return whether all that a step may change is plain tensors on the device."""
    # The state of a nested optimizer (ZeroRedundancyOptimizer) is not visible here.
    if any(isinstance(part, Optimizer) for part in vars(optimizer).values()):
        return False
    if not all(isinstance(entry, dict) for entry in optimizer.state.values()):
        return False
    values = _values(optimizer).values()
    return all(type(value) in PLAIN and value.device == device for value in values)


def _is_like(one: Tensor, other: Any) -> bool:
    """Return whether the other is a tensor of the same shape, type and device."""
    return (
        isinstance(other, torch.Tensor)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
    )


def _same_options(one: dict, other: dict) -> bool:
    """Return whether a parameter group is unchanged.

    Options that are tensors are compared by identity: reading their values would synchronize.
    """
    return one.keys() == other.keys() and all(
        value is other[name] or (not isinstance(value, torch.Tensor) and value == other[name])
        for name, value in one.items()
    )


def _total(found: Iterable[Tensor]) -> Tensor:
    """Return the sum of the flags of several devices, on the first of them."""
    first, *others = found
    for other in others:
        first = first + other.to(first.device, non_blocking=True)
    return first
