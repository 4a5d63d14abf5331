"""Host memory that a checkpoint is copied into, shared with the process that writes it."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from mmtempo.device.streams import pin_in_place, unpin

ALIGNMENT = 64


@dataclass(eq=False)
class Slot:
    """Where a tensor that was given out lies.

    Attributes:
        start: In bytes, from the start of the area.
        shaped: Shape, strides and type of what is copied there.
        room: Bytes that it takes.
        tensor: What was given out.
        pickled: For whoever pickles it, to keep what comes out as long as it is given out.
    """

    start: int
    shaped: tuple
    room: int
    tensor: torch.Tensor
    pickled: bytes | None = None


class HostBuffer:
    """Memory for the tensors of one checkpoint, used again for the next.

    On Linux it is a file that lives in memory only and has no name; elsewhere a temporary file.
    Nothing else of it is known to another process than `address`.

    Args:
        device: What is copied from; memory is pinned for CUDA and ROCm. Defaults to 'cpu'.
    """

    def __init__(self, device: torch.device | str = 'cpu') -> None:
        self._device = torch.device(device)
        self._name: str | None = None
        if hasattr(os, 'memfd_create'):
            self._file = os.memfd_create('mmtempo-checkpoint')
        else:
            self._file, self._name = tempfile.mkstemp(prefix='mmtempo-')
        self._bytes: Any = None
        self._whole: torch.Tensor | None = None
        self._is_pinned = False
        self._given: list[Slot] = []  # in the order they were asked for
        self._places: dict[int, Slot] = {}  # the same, by the tensor
        self._asked = 0
        self._used = 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Where another process finds the memory, and how much; None where there is none yet."""
        if self._whole is None:
            return None
        return self._name or f'/proc/{os.getpid()}/fd/{self._file}', self.size

    @property
    def memory(self) -> memoryview | None:
        """All of it, as this process writes from it; None where there is none yet."""
        return None if self._bytes is None else memoryview(self._bytes)

    @property
    def is_of_host(self) -> bool:
        """Whether nothing but the host itself copies into it."""
        return self._device.type == 'cpu'

    @property
    def size(self) -> int:
        return 0 if self._whole is None else self._whole.numel()

    @property
    def wanted(self) -> int:
        """How many bytes have been asked for; there is room for `size`."""
        return self._used

    def clear(self) -> None:
        """Begin again: what is asked for next lies where something else lay."""
        self._take_back(slice(self._asked, None))  # the time before had fewer
        self._asked = self._used = 0

    def reserve(self, size: int) -> None:
        """Have room for so many bytes; tensors given out before are no longer shared."""
        if size <= self.size:
            return
        self._release()
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # Memory that is not there is an error now, and no SIGBUS when it is touched.
        if hasattr(os, 'posix_fallocate'):
            os.posix_fallocate(self._file, 0, size)
        os.ftruncate(self._file, size)
        self._bytes = mmap.mmap(self._file, size)
        self._whole = torch.frombuffer(self._bytes, dtype=torch.uint8)
        self._is_pinned = pin_in_place(self._whole, self._device)

    def allocate_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Room for a copy of a tensor: of its shape and, where it has no gaps, its strides.

        Past the end of the area nothing is given, only counted: see `wanted`.
        """
        number, start = self._asked, self._used
        shaped = tensor.shape, tensor.stride(), tensor.dtype
        if number < len(self._given):
            known = self._given[number]
            if known.start == start and known.shaped == shaped:  # a layout rarely changes
                self._asked, self._used = number + 1, start + known.room
                return known.tensor
        self._used += room(tensor)
        if self._used > self.size:
            return tensor
        self._take_back(slice(number, None))
        place = Slot(start, shaped, room(tensor), self._carve(tensor, start))
        self._given.append(place)
        self._places[id(place.tensor)] = place
        self._asked += 1
        return place.tensor

    def place_of(self, tensor: torch.Tensor) -> Slot | None:
        """Of one that was given out."""
        return self._places.get(id(tensor))

    def offset(self, address: int, size: int) -> int | None:
        """Where memory of this process lies in the area; None where it is not of it."""
        if self._whole is None:
            return None
        offset = address - self._whole.data_ptr()
        return offset if offset >= 0 and offset + size <= self.size else None

    def close(self) -> None:
        self._release()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._name is not None:
            os.remove(self._name)
            self._name = None

    def _carve(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        shape, strides = tensor.shape, tensor.stride()
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes == 0:
            return torch.empty(shape, dtype=tensor.dtype)
        # Each has a storage of its own, as a record of the file has.
        flat = torch.frombuffer(self._bytes, dtype=torch.uint8, count=nbytes, offset=start)
        if not is_dense(tensor):
            strides = torch.empty(shape, device='meta').stride()
        return flat.view(tensor.dtype).as_strided(shape, strides)

    def _take_back(self, which: slice) -> None:
        for place in self._given[which]:
            del self._places[id(place.tensor)]
        del self._given[which]

    def _release(self) -> None:
        if self._whole is not None and self._is_pinned:
            unpin(self._whole, self._device)
            self._is_pinned = False
        self._take_back(slice(None))
        self._asked = 0
        # Tensors that somebody still holds keep the mapping alive; the memory is then freed.
        self._whole = self._bytes = None


def room(tensor: torch.Tensor) -> int:
    """Bytes that a copy takes in the area."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True
