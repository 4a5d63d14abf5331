"""A copy of a training's state that the training hardly waits for."""

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

# Nothing changes these, so that they need no copy.
ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.Size})


class TornError(RuntimeError):
    """A tensor was changed while it was being copied."""


class Deferred:
    """A value in a dict of a tree that nothing changes before the next fence, in no part of it.

    It is made and gone through when the training goes on already, but for a device, whose copies
    the training itself must start.

    Args:
        make: Returns the value.
        is_of_host: Whether it holds nothing of a device: then it is always made by `finish`, so
            `make` may wait there for a copy to the host. Defaults to False.
    """

    def __init__(self, make: Callable[[], Any], is_of_host: bool = False) -> None:
        self.make, self.is_of_host = make, is_of_host


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

    def __init__(self, area: HostBuffer) -> None:
        self._area = area
        self._staged = threading.Event()
        self._staged.set()
        self._late: list[tuple[Tensor, Tensor]] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._torn: bool | None = None  # not known yet
        self._lock = threading.Lock()
        self._freezer = _Freezer(area, (), defers=False)
        self._needed = 0
        self._streams: dict[torch.device, SideStream] = {}
        self._events: list[tuple[SideStream, Any]] = []

    @torch.no_grad()
    def take(self, trees: list[Any], late: Collection[int] = ()) -> list[Any]:
        """Start a snapshot; the one before must be finished, and its copies no longer needed.

        Args:
            trees: Nested dicts, lists and tuples of tensors and whatever else can be copied.
            late: Addresses (`data_ptr`) of tensors that nothing changes before the next fence.
                Defaults to ().
        """
        defers = self._area.is_of_host
        frozen = self._freeze(trees, late, defers)
        if max(self._area.wanted, self._needed) > self._area.size:
            self._freeze(trees, late, defers=False)  # how much room all of it takes
            self._area.reserve(max(self._area.wanted, self._needed))
            frozen = self._freeze(trees, late, defers)
        by_device: dict[torch.device, tuple[list, list]] = {}
        for is_late, target, source in self._freezer.take_copies():
            by_device.setdefault(source.device, ([], []))[is_late].append((target, source))
        self._late, self._events = [], []
        put_off = self._freezer.tensors_put_off()
        for device, (first, last) in by_device.items():
            if device.type not in WITHOUT_PINNING:
                stream = self._streams.get(device)
                if stream is None:
                    stream = self._streams[device] = SideStream(device)
                stream.hold(stream.copy(first))
                self._events.append((stream, stream.copy(last)))
                put_off += [source for _, source in last]
            elif device.type == 'cpu' and len(by_device) == 1:
                _copy(first)
                self._late = last
                put_off += [source for _, source in last]
            else:
                # On the host beside a device: little, as Adam's counts of steps, and the fence
                # must not wait for it. And what has no asynchronous copies, as MPS.
                for target, source in first + last:
                    target.copy_(source)
        self._versions = [(tensor, tensor._version) for tensor in put_off]
        self._torn = None
        self._staged.clear()
        return frozen

    def finish(self) -> None:
        """Copy what is late, or wait until the device has; in another thread than the training."""
        try:
            with torch.no_grad():
                _copy(self._late + [pair[1:] for pair in self._freezer.freeze_late()])
            self._needed = self._area.wanted
            for stream, event in self._events:
                stream.wait(event)
            if self._is_torn():
                raise TornError('parameters were changed by the forward or backward pass')
        finally:
            self._late, self._versions = [], []
            self._freezer.clear()
            self._staged.set()

    @property
    def is_staged(self) -> bool:
        """Whether all is copied, so that a fence has nothing to wait for."""
        return self._staged.is_set()

    def fence(self) -> float:
        """Let nothing change before it is copied; the seconds that the host waited."""
        if self.is_staged:
            return 0.0
        if self._events:
            self._is_torn()  # what is changed from now on is changed behind the copies
            for stream, event in self._events:
                stream.hold(event)
            return 0.0
        start = time.perf_counter()
        self._staged.wait()
        return time.perf_counter() - start

    def _is_torn(self) -> bool:
        """Whether anything was changed before the first fence, or the end of the copies."""
        with self._lock:
            if self._torn is None:
                self._torn = any(tensor._version != known for tensor, known in self._versions)
            return self._torn

    def _freeze(self, trees: list[Any], late: Collection[int], defers: bool) -> list[Any]:
        self._area.clear()
        self._freezer = _Freezer(self._area, late, defers)
        return [self._freezer.freeze(tree) for tree in trees]


class _Freezer:
    """Rebuilds containers, with a place in the area for each tensor; copies everything else."""

    def __init__(self, area: HostBuffer, late: Collection[int], defers: bool) -> None:
        self._area, self._late, self._defers = area, late, defers
        self._is_late = self._is_last = False
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._parts: list[tuple[dict, Any, Any]] = []
        self._copies: list[tuple[bool, Tensor, Tensor]] = []

    def freeze(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is Tensor:
            return self._place(value)
        if kind is dict:
            return self._fill({}, value)
        if kind is list:
            return [item if type(item) in ATOMS else self.freeze(item) for item in value]
        if kind is tuple:
            return tuple([self.freeze(item) for item in value])
        if kind is OrderedDict:
            ordered: OrderedDict = self._fill(OrderedDict(), value)
            self._fill(vars(ordered), vars(value))  # a state_dict's `_metadata`
            return ordered
        if kind is Deferred:
            return self._freeze_now(value)
        return copy.deepcopy(value)

    def _fill(self, frozen: Any, value: dict) -> Any:
        for key, item in value.items():
            if type(item) in ATOMS:
                frozen[key] = item
            elif self._is_put_off(item):
                self._parts.append((frozen, key, item))
                frozen[key] = None  # its place, in this order
            else:
                frozen[key] = self.freeze(item)
        return frozen

    def _is_put_off(self, item: Any) -> bool:
        if type(item) is Deferred:
            return self._defers or item.is_of_host
        is_late = self._defers and type(item) is Tensor and item.layout is torch.strided
        return is_late and item.data_ptr() in self._late

    def tensors_put_off(self) -> list[Tensor]:
        """Those whose places are still empty; what is in a `Deferred` is not known yet."""
        return [part for _, _, part in self._parts if type(part) is not Deferred]

    def take_copies(self) -> list[tuple[bool, Tensor, Tensor]]:
        """What is to be copied: whether it is of a late part, target and source."""
        copies, self._copies = self._copies, []
        return copies

    def freeze_late(self) -> list[tuple[bool, Tensor, Tensor]]:
        """Go through what was left out; the copies that this takes."""
        self._defers, self._is_last = False, True
        for parent, key, part in self._parts:
            parent[key] = self.freeze(part)
        return self.take_copies()

    def _freeze_now(self, part: Deferred) -> Any:
        self._is_late = True
        frozen = self.freeze(part.make())
        self._is_late = False
        return frozen

    def clear(self) -> None:
        """Let go of the training's tensors."""
        self._seen, self._parts, self._copies = {}, [], []

    def _place(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return copy.deepcopy(tensor.detach())
        # Tied weights stay one, and one state in several files is copied once.
        address = tensor.data_ptr()
        there = self._seen.setdefault(address, [])
        for other, found in there:
            if _is_same(other, tensor):
                return found
        found = self._area.allocate_like(tensor)
        if found is tensor and self._is_last:
            found = torch.empty_like(tensor, device='cpu')  # there was more than before
        there.append((tensor, found))
        if address:
            self._copies.append((self._is_late or address in self._late, found, tensor))
        return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Of two tensors at one address, whether they are the same."""
    return (
        all(getattr(one, name) == getattr(other, name) for name in ('shape', 'dtype', 'device'))
        and one.stride() == other.stride()
    )


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """All in one call: a thread that came back for each would wait for Python's lock each time."""
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
