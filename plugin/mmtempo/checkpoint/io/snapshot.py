"""Copies of the training state, most of which are made while the training runs."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from mmtempo.device.streams import WITHOUT_PINNING, SideStream

from .host_buffer import HostBuffer

# Types of immutable values, which need no copy.
ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.Size})


class TornError(RuntimeError):
    """A tensor was changed while it was being copied."""


class Deferred:
    """A value in a dict of a tree that is made in `Snapshot.finish`.

    For a value that may be on its way from a device: the training's thread must not wait for it.

    Args:
        make: Function that returns the value, which is then copied. It contains no tensors, and
            references nothing that the training changes.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class Snapshot:
    """Copies of trees of tensors in a host buffer; what does not change soon is copied later.

    ::

        take(trees)     copies all but the late tensors; returns the trees with the copies
        finish()        in another thread: copies the late tensors, or waits for the device
        await_copies()  before the late tensors change: returns when they are copied

    The copies of a device run on a side stream: `take` and `await_copies` make the device wait,
    never the host.

    Args:
        buffer: Buffer that the tensors are copied to.
    """

    def __init__(self, buffer: HostBuffer) -> None:
        self._buffer = buffer
        self._copied = threading.Event()
        self._copied.set()
        self._late: list[tuple[Tensor, Tensor]] = []  # target and source
        self._versions: list[tuple[Tensor, int]] = []
        self._torn: bool | None = None  # None until it is determined
        self._lock = threading.Lock()
        self._deferred: list[tuple[dict, Any, Deferred]] = []  # dict, key and value
        self._streams: dict[torch.device, SideStream] = {}
        self._events: list[tuple[SideStream, Any]] = []

    @torch.no_grad()
    def take(self, trees: list[Any], late: Collection[int] = ()) -> list[Any]:
        """Start a snapshot.

        The previous one must be finished, and its copies are overwritten.

        Args:
            trees: Nested dicts, lists and tuples of tensors and of values that can be copied.
            late: Addresses (`data_ptr`) of tensors that do not change before `await_copies`.
                Defaults to ().
        """
        frozen, freezer = self._freeze(trees)
        if self._buffer.requested > self._buffer.size:
            self._buffer.reserve(self._buffer.requested)
            frozen, freezer = self._freeze(trees)
        self._deferred = freezer.deferred
        by_device: dict[torch.device, tuple[list, list]] = {}
        for target, source in freezer.copies:
            is_late = source.data_ptr() in late
            by_device.setdefault(source.device, ([], []))[is_late].append((target, source))
        self._late, self._events = [], []
        watched: list[Tensor] = []
        for device, (first, last) in by_device.items():
            if device.type not in WITHOUT_PINNING:
                stream = self._streams.get(device)
                if stream is None:
                    stream = self._streams[device] = SideStream(device)
                stream.make_current_wait(stream.copy(first))
                self._events.append((stream, stream.copy(last)))
                watched += [source for _, source in last]
            elif device.type == 'cpu' and len(by_device) == 1:
                _copy(first)
                self._late = last
                watched += [source for _, source in last]
            else:
                # Copied at once: with a device, `await_copies` does not wait for host tensors
                # (which are few, as Adam's step counts), and MPS has no asynchronous copies.
                for target, source in first + last:
                    target.copy_(source)
        self._versions = [(tensor, tensor._version) for tensor in watched]
        self._torn = None
        self._copied.clear()
        return frozen

    def finish(self) -> None:
        """Copy the late tensors, or wait for the device's copies; called by the writer thread."""
        try:
            with torch.no_grad():
                _copy(self._late)
            for parent, key, deferred in self._deferred:
                parent[key] = copy.deepcopy(deferred.make())
            for _, event in self._events:
                event.synchronize()
            if self._is_torn():
                raise TornError('parameters were changed by the forward or backward pass')
        finally:
            self._late, self._versions, self._deferred = [], [], []
            self._copied.set()

    @property
    def is_copied(self) -> bool:
        """Whether everything is copied, so that `await_copies` would not wait."""
        return self._copied.is_set()

    def await_copies(self) -> float:
        """Make later changes wait for the copies; return the seconds for which the host waited."""
        if self.is_copied:
            return 0.0
        if self._events:
            self._is_torn()  # check now: the device makes later changes wait for the copies
            for stream, event in self._events:
                stream.make_current_wait(event)
            return 0.0
        start = time.perf_counter()
        self._copied.wait()
        return time.perf_counter() - start

    def _is_torn(self) -> bool:
        """Return whether a late tensor changed before `await_copies` or the end of the copies."""
        with self._lock:
            if self._torn is None:
                self._torn = any(tensor._version != version for tensor, version in self._versions)
            return self._torn

    def _freeze(self, trees: list[Any]) -> tuple[list[Any], _Freezer]:
        self._buffer.clear()
        freezer = _Freezer(self._buffer)
        return [freezer.freeze(tree) for tree in trees], freezer


class _Freezer:
    """Rebuilds containers with buffer tensors in place of tensors; copies all other values.

    Args:
        buffer: Buffer that the tensors are allocated in.

    Attributes:
        copies: Target and source of each copy that is to be made.
        deferred: Dict, key and value of each `Deferred`.
    """

    def __init__(self, buffer: HostBuffer) -> None:
        self._buffer = buffer
        self._seen: dict[tuple, Tensor] = {}
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.deferred: list[tuple[dict, Any, Deferred]] = []

    def freeze(self, value: Any) -> Any:
        """Return a copy of a value; the content of its tensors is still to be copied."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is Tensor:
            return self._allocate(value)
        if kind is dict:
            return self._fill({}, value)
        if kind is list:
            return [item if type(item) in ATOMS else self.freeze(item) for item in value]
        if kind is tuple:
            return tuple([self.freeze(item) for item in value])
        if kind is OrderedDict:
            ordered: OrderedDict = self._fill(OrderedDict(), value)
            self._fill(vars(ordered), vars(value))  # `_metadata` of a state_dict
            return ordered
        return copy.deepcopy(value)

    def _fill(self, frozen: Any, value: dict) -> Any:
        for key, item in value.items():
            if type(item) in ATOMS:
                frozen[key] = item
            elif type(item) is Deferred:
                self.deferred.append((frozen, key, item))
                frozen[key] = None  # keeps the order of the keys
            else:
                frozen[key] = self.freeze(item)
        return frozen

    def _allocate(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return copy.deepcopy(tensor.detach())
        # Tied weights stay tied, and a tensor in several files is copied once.
        address = tensor.data_ptr()
        key = tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()
        if key not in self._seen:
            self._seen[key] = self._buffer.allocate_like(tensor)
            if address:
                self.copies.append((self._seen[key], tensor))
        return self._seen[key]


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy sources to targets in one call, so that the thread waits for the GIL once."""
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
