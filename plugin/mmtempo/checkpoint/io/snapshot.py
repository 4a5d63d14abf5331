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
    """A value in a dict of a tree which, with all it contains, is copied in `Snapshot.finish`.

    It does not change before `Snapshot.await_copies`. With a device it is copied in
    `Snapshot.take`, because the training's thread must start the copies of its tensors.

    Args:
        make: Function that returns the value.
        is_of_host: Whether the value contains nothing from a device. Then it is always made in
            `finish`, so that `make` may wait there for a copy to the host. Defaults to False.
    """

    def __init__(self, make: Callable[[], Any], is_of_host: bool = False) -> None:
        self.make, self.is_of_host = make, is_of_host


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
        self._freezer = _Freezer(buffer, (), defers=False)
        self._needed = 0
        self._streams: dict[torch.device, SideStream] = {}
        self._events: list[tuple[SideStream, Any]] = []

    @torch.no_grad()
    def take(self, trees: list[Any], late: Collection[int] = ()) -> list[Any]:
        """Start a snapshot.

        The previous one must be finished, and its copies are overwritten.

        Args:
            trees: Nested dicts, lists and tuples of tensors and of values that can be copied.
            late: Addresses (`data_ptr`) of tensors that do not change before `await_copies`.
                Without any, deferred values are copied at once, unless they are of the host.
                Defaults to ().
        """
        defers = self._buffer.copies_from_host and bool(late)
        frozen = self._freeze(trees, late, defers)
        if max(self._buffer.requested, self._needed) > self._buffer.size:
            self._freeze(trees, late, defers=False)  # count the deferred values as well
            self._buffer.reserve(max(self._buffer.requested, self._needed))
            frozen = self._freeze(trees, late, defers)
        by_device: dict[torch.device, tuple[list, list]] = {}
        for is_late, target, source in self._freezer.copies:
            by_device.setdefault(source.device, ([], []))[is_late].append((target, source))
        self._late, self._events = [], []
        left_out = [value for _, _, value in self._freezer.deferred]
        watched = [value for value in left_out if type(value) is not Deferred]
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
                _copy(self._late + self._freezer.freeze_deferred())
            self._needed = self._buffer.requested
            for _, event in self._events:
                event.synchronize()
            if self._is_torn():
                raise TornError('parameters were changed by the forward or backward pass')
        finally:
            self._late, self._versions = [], []
            self._freezer = _Freezer(self._buffer, (), defers=False)  # releases the tensors
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

    def _freeze(self, trees: list[Any], late: Collection[int], defers: bool) -> list[Any]:
        self._buffer.clear()
        self._freezer = _Freezer(self._buffer, late, defers)
        return [self._freezer.freeze(tree) for tree in trees]


class _Freezer:
    """Rebuilds containers with buffer tensors in place of tensors; copies all other values.

    Args:
        buffer: Buffer that the tensors are allocated in.
        late: Addresses of tensors that do not change before `await_copies`.
        defers: Whether late tensors and deferred values are left out until `freeze_deferred`.

    Attributes:
        deferred: Dict, key and value of what was left out.
        copies: Whether it is late, target and source of each copy to be made.
    """

    def __init__(self, buffer: HostBuffer, late: Collection[int], defers: bool) -> None:
        self._buffer, self._late, self._defers = buffer, late, defers
        self._is_late = self._is_last = False
        self._seen: dict[tuple, Tensor] = {}
        self.deferred: list[tuple[dict, Any, Any]] = []
        self.copies: list[tuple[bool, Tensor, Tensor]] = []

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
        if kind is Deferred:
            self._is_late = bool(self._late)
            frozen = self.freeze(value.make())
            self._is_late = False
            return frozen
        return copy.deepcopy(value)

    def _fill(self, frozen: Any, value: dict) -> Any:
        for key, item in value.items():
            if type(item) in ATOMS:
                frozen[key] = item
            elif self._is_deferred(item):
                self.deferred.append((frozen, key, item))
                frozen[key] = None  # keeps the order of the keys
            else:
                frozen[key] = self.freeze(item)
        return frozen

    def _is_deferred(self, item: Any) -> bool:
        if type(item) is Deferred:
            return self._defers or item.is_of_host
        is_strided = self._defers and type(item) is Tensor and item.layout is torch.strided
        return is_strided and item.data_ptr() in self._late

    def freeze_deferred(self) -> list[tuple[Tensor, Tensor]]:
        """Fill in what was left out; return target and source of each copy to be made for it."""
        self._defers, self._is_last, self.copies = False, True, []
        for parent, key, value in self.deferred:
            parent[key] = self.freeze(value)
        return [(target, source) for _, target, source in self.copies]

    def _allocate(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return copy.deepcopy(tensor.detach())
        # Tied weights stay tied, and a tensor in several files is copied once.
        address = tensor.data_ptr()
        key = tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()
        if key in self._seen:
            return self._seen[key]
        target = self._buffer.allocate_like(tensor)
        if target is tensor and self._is_last:
            # The deferred values have grown: `reserve` makes room for them in the next snapshot.
            target = torch.empty_like(tensor, device='cpu')
        self._seen[key] = target
        if address:
            self.copies.append((self._is_late or address in self._late, target, tensor))
        return target


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy sources to targets in one call, so that the thread waits for the GIL once."""
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
