"""Reusable shared memory in which batches cross from workers to the training process.

Torch allocates new shared memory for each tensor, which the kernel zeroes page by page, and
sends its handle through a separate connection. A slab is an anonymous file in memory that both
processes keep mapped; only the offset of each tensor is sent.
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

ALIGNMENT = 64  # bytes; no less than what vectorized kernels need
MIN_SIZE = 1 << 16  # bytes of a slab, for batches of many small tensors
HEADROOM = 1.25  # of the expected size, since batches differ
_pools: weakref.WeakValueDictionary[int, SlabPool] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_writer: _Writer | None = None  # of this process, while it makes a batch
_mapped: dict[int, mmap.mmap] = {}  # slabs that this process, a worker, has mapped


class SlabLease(NamedTuple):
    """The description of a slab that a worker may write one batch to.

    Attributes:
        pool: ID of the pool in the training process.
        number: Number of the slab, unique in the training process.
        path: File that a worker can map.
        size: Bytes.
        oldest: Lowest number of the pool's slabs; a worker unmaps those below it.
    """

    pool: int
    number: int
    path: str
    size: int
    oldest: int


class SlabPool:
    """The slabs of a loader, in the training process.

    A slab is leased to one batch, and is free again when no tensor of that batch is left.

    Args:
        size: Expected bytes of a batch.
    """

    def __init__(self, size: int) -> None:
        self._id = next(_numbers)
        self._size = max(math.ceil(size * HEADROOM), MIN_SIZE)
        self._free: collections.deque[int] = collections.deque()
        self._maps: dict[int, mmap.mmap] = {}
        self._files: dict[int, int] = {}
        _pools[self._id] = self

    @staticmethod
    def is_supported() -> bool:
        """Return whether other processes can open anonymous memory files of this one."""
        return hasattr(os, 'memfd_create') and os.path.exists('/proc/self/fd')

    def lease(self) -> SlabLease:
        """Return a lease of a slab that no process reads or writes."""
        number = self._take_free()
        if number is None:
            number = next(_numbers)
            file = os.memfd_create('mmtempo-batch')
            os.ftruncate(file, self._size)
            self._files[number], self._maps[number] = file, mmap.mmap(file, self._size)
        path = f'/proc/{os.getpid()}/fd/{self._files[number]}'
        return SlabLease(self._id, number, path, len(self._maps[number]), min(self._maps))

    def discard(self, lease: SlabLease) -> None:
        """Close the slab of a batch that did not arrive in it: a worker may still write to it."""
        if lease.number in self._maps:
            self._close(lease.number)

    def read(self, packed: Packed) -> Any:
        """Return a batch whose tensors are views of its slab.

        The slab is free again when the last tensor is deleted: each holds a reference to one
        buffer over the slab, whose finalizer returns the slab.
        """
        number = packed.lease.number
        if packed.needed > self._size:
            self._size = math.ceil(packed.needed * HEADROOM)
        memory = self._maps[number]
        buffer = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        weakref.finalize(buffer, self._free.append, number).atexit = False
        return _Unpickler(io.BytesIO(packed.content), buffer).load()

    def close(self) -> None:
        """Close all slabs; tensors that are still referenced keep their memory."""
        for number in list(self._maps):
            self._close(number)

    def _take_free(self) -> int | None:
        while self._free:
            number = self._free.popleft()
            if number not in self._maps:  # closed while it was leased
                continue
            if len(self._maps[number]) >= self._size:
                return number
            self._close(number)  # too small for the present batches
        return None

    def _close(self, number: int) -> None:
        del self._maps[number]
        os.close(self._files.pop(number))


class Packed:
    """A batch as a worker sends it: pickled, with its tensors in a slab.

    Attributes:
        lease: Lease of the slab.
        content: The batch, pickled, with offsets in place of tensors.
        needed: Bytes that the tensors take in a slab, including those that did not fit.
        timing: What the worker reports about making the batch; None where it reports nothing.
    """

    def __init__(self, lease: SlabLease, content: bytes, needed: int) -> None:
        self.lease, self.content, self.needed = lease, content, needed
        self.timing: Any = None
        self._pinned: Any = None

    def read(self) -> Any:
        """Return the batch; call it in the training process."""
        return _pools[self.lease.pool].read(self) if self._pinned is None else self._pinned

    def pin_memory(self) -> Packed:
        """Copy the batch to pinned memory, which frees the slab; torch's pin thread calls this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self._pinned = pin_memory(self.read())
        return self


class _Writer:
    """The allocator of a slab's memory in a worker, for one batch."""

    def __init__(self, lease: SlabLease) -> None:
        self._memory = _map(lease)
        self._start = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory))
        self._outside: set[int] = set()
        self.needed = 0

    def new_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor in the slab, or outside where the slab is full."""
        count = math.prod(shape)
        offset = self.needed
        self.needed += -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        if self.needed > len(self._memory):
            outside = torch.empty(tuple(shape), dtype=dtype)
            self._outside.add(outside.data_ptr())
            return outside
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)
        return flat.view(tuple(shape))

    def locate(self, tensor: torch.Tensor) -> int | bytes:
        """Return a tensor's offset in the slab, copied there if needed; its bytes if full."""
        if not self._is_inside(tensor) and tensor.data_ptr() not in self._outside:
            tensor = self.new_tensor(tensor.shape, tensor.dtype).copy_(tensor)
        if self._is_inside(tensor):
            return tensor.data_ptr() - self._start
        return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - self._start < len(self._memory)


def pack(lease: SlabLease, make: Callable[[list], Any], samples: list) -> Any:
    """Collate samples into a slab, in a worker.

    Args:
        lease: Lease of the slab.
        make: Collate function.
        samples: Samples of the batch.

    Returns:
        A `Packed` batch, or the batch itself where the slab cannot be opened.
    """
    global _writer
    try:
        writer = _writer = _Writer(lease)
    except OSError:
        return make(samples)
    try:
        batch = make(samples)
        content = io.BytesIO()
        _Pickler(content, writer).dump(batch)
    finally:
        _writer = None
    return Packed(lease, content.getvalue(), writer.needed)


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return an uninitialized tensor in the slab of the present batch; None without a slab."""
    return None if _writer is None else _writer.new_tensor(shape, dtype)


def is_plain(value: Any) -> bool:
    """Return whether a value is a dense tensor on the host that can be copied as bytes."""
    return (
        type(value) is torch.Tensor
        and value.device.type == 'cpu'
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )


class _Pickler(ForkingPickler):
    """A pickler that writes offsets in the slab for plain tensors; torch reduces all others."""

    def __init__(self, file: io.BytesIO, writer: _Writer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._writer = writer

    def reducer_override(self, obj: Any) -> Any:
        # Not `persistent_id`: pickle calls it for each string and number as well.
        if not is_plain(obj) or not obj.is_contiguous() or not obj.numel():
            return NotImplemented
        return _tensor_at, (self._writer.locate(obj), obj.dtype, tuple(obj.shape))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffer: Any) -> None:
        super().__init__(file)
        self._buffer = buffer

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_tensor_at.__module__, _tensor_at.__name__):
            # Not a bound method: that cycle would keep the slab until the garbage collector runs.
            return partial(_tensor_in, self._buffer)
        return super().find_class(module, name)


def _tensor_at(offset: int | bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Stand in for `_tensor_in` in a pickle; the unpickler replaces it."""
    raise pickle.UnpicklingError('a batch in a slab must be read by SlabPool.read()')


def _tensor_in(
    buffer: Any, offset: int | bytes, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    if isinstance(offset, bytes):  # the content, which did not fit into the slab
        return torch.frombuffer(bytearray(offset), dtype=dtype).view(shape)
    flat = torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset)
    return flat.view(shape)


def _map(lease: SlabLease) -> mmap.mmap:
    memory = _mapped.get(lease.number)
    if memory is None:
        file = os.open(lease.path, os.O_RDWR)
        try:
            memory = _mapped[lease.number] = mmap.mmap(file, lease.size)
        finally:
            os.close(file)
        for number in [number for number in _mapped if number < lease.oldest]:
            del _mapped[number]  # the training process has closed it
    return memory
