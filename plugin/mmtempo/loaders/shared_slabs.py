"""Memory in which batches cross to the training, used again and again.

Torch makes new shared memory for each tensor, which the kernel clears page by page, and sends
its handle through a connection of its own. A slab is a file in memory that both processes have
mapped already; what crosses is where in it a tensor lies.
"""

from __future__ import annotations

import collections
import ctypes
import io
import itertools
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

ALIGNMENT = 64
LEAST = 1 << 16  # bytes, for batches of many small tensors
SPARE = 1.25  # batches differ
_all: weakref.WeakValueDictionary[int, SlabPool] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_writer: _Writer | None = None  # of this process, while it makes a batch
_mapped: dict[int, mmap.mmap] = {}  # of this process, a worker


class SlabLease(NamedTuple):
    """A slab for one batch, as a worker is told of it."""

    owner: int
    number: int
    path: str
    size: int
    oldest: int  # of those that are still in use


class SlabPool:
    """The training's side: lends slabs to batches, and has them back when nobody reads them.

    Args:
        size: Bytes that a batch is expected to take.
    """

    def __init__(self, size: int) -> None:
        self._id = next(_numbers)
        self._size = max(math.ceil(size * SPARE), LEAST)
        self._free: collections.deque[int] = collections.deque()
        self._maps: dict[int, mmap.mmap] = {}
        self._files: dict[int, int] = {}
        self._opened: set[int] = set()
        _all[self._id] = self

    @staticmethod
    def work_here() -> bool:
        """Whether memory without a name can be reached by another process."""
        return hasattr(os, 'memfd_create') and os.path.exists('/proc/self/fd')

    def lend(self) -> SlabLease:
        """A slab that nobody reads or writes."""
        number = self._take_free()
        if number is None:
            number = next(_numbers)
            file = os.memfd_create('mmtempo-batch')
            os.ftruncate(file, self._size)
            self._files[number], self._maps[number] = file, mmap.mmap(file, self._size)
        path = f'/proc/{os.getpid()}/fd/{self._files[number]}'
        return SlabLease(self._id, number, path, len(self._maps[number]), min(self._maps))

    def done(self, loan: SlabLease) -> None:
        """The batch has come; where it did not use its slab, that is free again."""
        if loan.number in self._opened:
            self._opened.discard(loan.number)
        else:
            self._free.append(loan.number)

    def forget(self, loan: SlabLease) -> None:
        """Nobody knows whether a worker still writes to it."""
        if loan.number in self._maps:
            self._close(loan.number)

    def read(self, packed: Packed) -> Any:
        """The batch; its tensors lie in the slab, which is lent until the last one has gone."""
        number = packed.loan.number
        self._opened.add(number)
        if packed.needed > self._size:
            self._size = math.ceil(packed.needed * SPARE)
        memory = self._maps[number]
        lease = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        weakref.finalize(lease, self._free.append, number).atexit = False
        return _Unpickler(io.BytesIO(packed.content), lease).load()

    def close(self) -> None:
        """Tensors that somebody still reads keep their memory."""
        for number in list(self._maps):
            self._close(number)

    def _take_free(self) -> int | None:
        while self._free:
            number = self._free.popleft()
            if number not in self._maps:  # closed meanwhile
                continue
            if len(self._maps[number]) >= self._size:
                return number
            self._close(number)  # too small for what batches are now
        return None

    def _close(self, number: int) -> None:
        del self._maps[number]
        os.close(self._files.pop(number))


class Packed:
    """A batch on its way: everything but the tensors that lie in its slab.

    Attributes:
        loan: The slab.
        content: The batch, pickled.
        needed: Bytes that its tensors take, whether there was room or not.
        origin: What whoever made it has to say of that.
    """

    def __init__(self, loan: SlabLease, content: bytes, needed: int) -> None:
        self.loan, self.content, self.needed = loan, content, needed
        self.origin: Any = None

    def read(self) -> Any:
        """In the training's process."""
        return _all[self.loan.owner].read(self)

    def pin_memory(self) -> Pinned:
        """Torch calls it, in a thread of its own; the slab is free when that is copied."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Pinned(pin_memory(self.read()), self.origin)


class Pinned:
    """A batch in pinned memory, and its origin."""

    def __init__(self, batch: Any, origin: Any) -> None:
        self._batch, self.origin = batch, origin

    def read(self) -> Any:
        return self._batch


class _Writer:
    """A worker's side: gives out the slab's memory, for one batch."""

    def __init__(self, loan: SlabLease) -> None:
        self._memory = _map(loan)
        self._start = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory))
        self._outside: set[int] = set()
        self.needed = 0

    def new_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised; in the slab, or where there is no room, outside."""
        count = math.prod(shape)
        offset = self.needed
        self.needed += -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if self.needed > len(self._memory):
            outside = torch.empty(tuple(shape), dtype=dtype)
            self._outside.add(outside.data_ptr())
            return outside
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)
        return flat.view(tuple(shape))

    def place(self, tensor: torch.Tensor) -> int | bytes:
        """Where it lies in the slab, brought there if need be; its content if there is no room."""
        if not self._is_inside(tensor) and tensor.data_ptr() not in self._outside:
            tensor = self.new_tensor(tensor.shape, tensor.dtype).copy_(tensor)
        if self._is_inside(tensor):
            return tensor.data_ptr() - self._start
        return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - self._start < len(self._memory)


def pack(loan: SlabLease, make: Callable[[list], Any], samples: list) -> Any:
    """Make a batch of samples, in a slab, in a worker; as it is, where slabs are out of reach."""
    global _writer
    try:
        writer = _writer = _Writer(loan)
    except OSError:
        return make(samples)
    try:
        batch = make(samples)
        content = io.BytesIO()
        _Pickler(content, writer).dump(batch)
    finally:
        _writer = None
    return Packed(loan, content.getvalue(), writer.needed)


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """For the batch that is being made, where it is made in a slab; else None."""
    return None if _writer is None else _writer.new_tensor(shape, dtype)


class _Pickler(ForkingPickler):
    """Names places in the slab instead of tensors; sparse ones and the like go torch's way."""

    def __init__(self, file: io.BytesIO, writer: _Writer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._writer = writer

    def reducer_override(self, obj: Any) -> Any:
        # Not `persistent_id`, which is asked of each string and number as well.
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        return _tensor_at, (self._writer.place(obj), obj.dtype, tuple(obj.shape))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, lease: Any) -> None:
        super().__init__(file)
        self._lease = lease

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_tensor_at.__module__, _tensor_at.__name__):
            # No method of this object: that would be a cycle, and hold the slab till it is found.
            return partial(_tensor_in, self._lease)
        return super().find_class(module, name)


def _tensor_at(place: int | bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Stands in a pickle for `_tensor_in`, before there is a lease."""
    raise pickle.UnpicklingError('a batch in a slab is read by Slabs.read()')


def _tensor_in(
    lease: Any, place: int | bytes, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    if isinstance(place, bytes):
        return torch.frombuffer(bytearray(place), dtype=dtype).view(shape)
    flat = torch.frombuffer(lease, dtype=dtype, count=math.prod(shape), offset=place)
    return flat.view(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    """All there is to it is its content: no gradient, no other tensor in its memory."""
    return (
        tensor.device.type == 'cpu'
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


def _map(loan: SlabLease) -> mmap.mmap:
    memory = _mapped.get(loan.number)
    if memory is None:
        file = os.open(loan.path, os.O_RDWR)
        try:
            memory = _mapped[loan.number] = mmap.mmap(file, loan.size)
        finally:
            os.close(file)
        for number in [number for number in _mapped if number < loan.oldest]:
            del _mapped[number]  # the training has closed it
    return memory
