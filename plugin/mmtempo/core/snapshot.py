"""A copy of a training's state that the training hardly waits for."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from .device import SideStream
from .staging import StagingArea

# Nothing changes these, so that they need no copy.
ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.Size})


class TornError(RuntimeError):
    """A tensor was changed while it was being copied."""


class Snapshot:
    """Copies trees of tensors into a staging area; what changes late is copied late.

    ::

        take(trees)   all but the late tensors are copied; returns the trees, with the copies
        finish()      in another thread: the late ones are copied, or have been by the device
        fence()       before the late ones change: nobody passes before they are copied

    With a device, the copies run on a stream of their own: `take` and `fence` make the device
    wait, never the host.

    Args:
        area: Where the copies go.
    """

    def __init__(self, area: StagingArea) -> None:
        self._area = area
        self._staged = threading.Event()
        self._staged.set()
        self._late: list[tuple[Tensor, Tensor]] = []
        self._versions: list[int] = []
        self._streams: dict[torch.device, SideStream] = {}
        self._events: list[tuple[SideStream, Any]] = []
        self.bytes = 0

    @torch.no_grad()
    def take(self, trees: list[Any], late: Collection[int] = ()) -> list[Any]:
        """Start a snapshot; the one before must be finished, and its copies no longer needed.

        Args:
            trees: Nested dicts, lists and tuples of tensors and whatever else can be copied.
            late: Addresses (`data_ptr`) of tensors that nothing changes before the next fence.
                Defaults to ().
        """
        frozen, copies = self._freeze(trees)
        if self._area.wanted > self._area.size:
            self._area.reserve(self._area.wanted)
            frozen, copies = self._freeze(trees)
        self.bytes = self._area.wanted
        by_device: dict[torch.device, list] = {}
        for pair in copies:
            by_device.setdefault(pair[1].device, []).append(pair)
        self._late, self._events = [], []
        for device, pairs in by_device.items():
            first = [pair for pair in pairs if pair[1].data_ptr() not in late]
            last = [pair for pair in pairs if pair[1].data_ptr() in late]
            if device.type == 'cpu':
                _copy(first)
                self._late = last
                continue
            stream = self._streams.setdefault(device, SideStream(device))
            stream.hold(stream.copy(first))
            self._events.append((stream, stream.copy(last)))
        self._versions = [source._version for _, source in self._late]
        self._staged.clear()
        return frozen

    def finish(self) -> None:
        """Copy what is late, or wait until the device has; in another thread than the training."""
        try:
            with torch.no_grad():
                _copy(self._late)
            if [source._version for _, source in self._late] != self._versions:
                raise TornError('parameters were changed by the forward or backward pass')
            for stream, event in self._events:
                stream.wait(event)
        finally:
            self._late = []
            self._staged.set()

    def fence(self) -> float:
        """Let nothing change before it is copied; the seconds that the host waited."""
        for stream, event in self._events:
            stream.hold(event)
        if self._events or self._staged.is_set():
            return 0.0
        start = time.perf_counter()
        self._staged.wait()
        return time.perf_counter() - start

    def _freeze(self, trees: list[Any]) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
        self._area.clear()
        freezer = _Freezer(self._area)
        return [freezer.freeze(tree) for tree in trees], freezer.copies


class _Freezer:
    """Rebuilds containers, with a place in the area for each tensor; copies everything else."""

    def __init__(self, area: StagingArea) -> None:
        self._area = area
        self._seen: dict[tuple, Tensor] = {}
        self.copies: list[tuple[Tensor, Tensor]] = []

    def freeze(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is Tensor:
            return self._place(value)
        if kind is dict:
            return {key: self.freeze(item) for key, item in value.items()}
        if kind is list:
            return [self.freeze(item) for item in value]
        if kind is tuple:
            return tuple([self.freeze(item) for item in value])
        if kind is OrderedDict:
            frozen = OrderedDict((key, self.freeze(item)) for key, item in value.items())
            frozen.__dict__.update(copy.deepcopy(vars(value)))  # a state_dict's `_metadata`
            return frozen
        return copy.deepcopy(value)

    def _place(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.requires_grad:
            return copy.deepcopy(tensor.detach())
        # Tied weights stay one, and one state in several files is copied once.
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = self._area.like(tensor)
            if tensor.numel():
                self.copies.append((found, tensor))
        return found


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """All in one call: a thread that came back for each would wait for Python's lock each time."""
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
