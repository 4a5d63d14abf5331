"""Host memory for the copies of a checkpoint, shared with the writer process."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from mmtempo.device.streams import pin_in_place, unpin

from .writer_process import ALIGNMENT


@dataclass(eq=False)
class Slot:
    """A part of the buffer that is allocated to a tensor.

    Attributes:
        start: Offset in the buffer in bytes.
        layout: Shape, strides and dtype of the tensor that is copied there.
        size: Size in bytes, a multiple of `ALIGNMENT`.
        tensor: The tensor in the buffer.
        pickled: The tensor's pickle, which `records_of` caches as long as the slot is allocated.
    """

    start: int
    layout: tuple
    size: int
    tensor: torch.Tensor
    pickled: bytes | None = None


class HostBuffer:
    """Memory for the tensors of one checkpoint, which is reused for the next.

    It is an anonymous file in memory on Linux, and a temporary file elsewhere. Another process
    needs only its `address` to map it.

    Args:
        device: Device that the tensors are copied from; memory is pinned for CUDA and ROCm.
            Defaults to 'cpu'.
    """

    def __init__(self, device: torch.device | str = 'cpu') -> None:
        self._device = torch.device(device)
        self._name: str | None = None
        if hasattr(os, 'memfd_create'):
            self._file = os.memfd_create('mmtempo-checkpoint')
        else:
            self._file, self._name = tempfile.mkstemp(prefix='mmtempo-')
        self._mapping: Any = None
        self._tensor: torch.Tensor | None = None  # all of the mapping
        self._is_pinned = False
        self._slots: list[Slot] = []  # in the order of their allocation
        self._slots_by_id: dict[int, Slot] = {}  # by the id of their tensor
        self._next = 0  # index of the next slot
        self._requested = 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Path by which another process can map the memory, and its size; None before any."""
        if self._tensor is None:
            return None
        return self._name or f'/proc/{os.getpid()}/fd/{self._file}', self.size

    @property
    def memory(self) -> memoryview | None:
        """All of the memory, for writing files from this process; None before any is reserved."""
        return None if self._mapping is None else memoryview(self._mapping)

    @property
    def copies_from_host(self) -> bool:
        """Whether the tensors are copied from host memory."""
        return self._device.type == 'cpu'

    @property
    def size(self) -> int:
        """Size of the reserved memory in bytes."""
        return 0 if self._tensor is None else self._tensor.numel()

    @property
    def requested(self) -> int:
        """Bytes that were requested since `clear`, also those beyond `size`."""
        return self._requested

    def clear(self) -> None:
        """Start a new checkpoint; its tensors overwrite those of the previous one."""
        self._drop_slots(slice(self._next, None))  # the previous checkpoint did not use them
        self._next = self._requested = 0

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes; if the buffer has to grow, earlier tensors are not shared."""
        if size <= self.size:
            return
        self._release()
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # Missing memory raises here. Without this it would be a SIGBUS at the first access.
        if hasattr(os, 'posix_fallocate'):
            os.posix_fallocate(self._file, 0, size)
        os.ftruncate(self._file, size)
        self._mapping = mmap.mmap(self._file, size)
        self._tensor = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._is_pinned = pin_in_place(self._tensor, self._device)

    def allocate_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Allocate a tensor of the same shape and dtype, and of the same strides if it is dense.

        If the buffer is full, only count the bytes in `requested` and return `tensor` itself.
        """
        index, start = self._next, self._requested
        layout = tensor.shape, tensor.stride(), tensor.dtype
        if index < len(self._slots):
            slot = self._slots[index]
            if slot.start == start and slot.layout == layout:  # a layout rarely changes
                self._next, self._requested = index + 1, start + slot.size
                return slot.tensor
        self._requested += slot_size(tensor)
        if self._requested > self.size:
            return tensor
        self._drop_slots(slice(index, None))
        slot = Slot(start, layout, slot_size(tensor), self._view(tensor, start))
        self._slots.append(slot)
        self._slots_by_id[id(slot.tensor)] = slot
        self._next += 1
        return slot.tensor

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """Return the slot of a tensor that `allocate_like` returned, or None."""
        return self._slots_by_id.get(id(tensor))

    def offset(self, address: int, size: int) -> int | None:
        """Return the offset of memory of this process in the buffer; None if it is outside."""
        if self._tensor is None:
            return None
        offset = address - self._tensor.data_ptr()
        return offset if offset >= 0 and offset + size <= self.size else None

    def close(self) -> None:
        """Release the memory and the file."""
        self._release()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._name is not None:
            os.remove(self._name)
            self._name = None

    def _view(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        shape, strides = tensor.shape, torch.empty_like(tensor, device='meta').stride()
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes == 0:
            return torch.empty(shape, dtype=tensor.dtype)
        # Each tensor has a separate storage, because each storage is a record of the file.
        flat = torch.frombuffer(self._mapping, dtype=torch.uint8, count=nbytes, offset=start)
        return flat.view(tensor.dtype).as_strided(shape, strides)

    def _drop_slots(self, which: slice) -> None:
        for slot in self._slots[which]:
            del self._slots_by_id[id(slot.tensor)]
        del self._slots[which]

    def _release(self) -> None:
        if self._tensor is not None and self._is_pinned:
            unpin(self._tensor, self._device)
            self._is_pinned = False
        self._drop_slots(slice(None))
        self._next = 0
        # The mapping is freed when no tensor refers to it any more.
        self._tensor = self._mapping = None


def slot_size(tensor: torch.Tensor) -> int:
    """Return the bytes that a copy of a tensor takes in the buffer."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
