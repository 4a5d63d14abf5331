"""Sample as one row of bytes, from which arrays are read without a copy."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import numpy as np
import torch

from mmtempo.utils.tensors import ALIGNMENT, is_plain

# Bytes. For smaller arrays a view costs more than a copy.
SMALL = 1024
_HEAD = struct.Struct('=II')


def pack(sample: Any) -> list[bytes | memoryview]:
    """Return the consecutive parts of the row; each large buffer starts at a multiple of 64."""
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= SMALL:
            buffers.append(raw)
        return raw.nbytes < SMALL

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=is_small).dump(sample)
    pickled = stream.getbuffer()
    sizes = struct.pack(f'={len(buffers)}Q', *(buffer.nbytes for buffer in buffers))
    head = _HEAD.pack(len(buffers), len(pickled)) + sizes
    parts: list[bytes | memoryview] = [head, pickled, _padding(len(head) + len(pickled))]
    for buffer in buffers:
        parts += [buffer, _padding(buffer.nbytes)]
    return parts


def unpack(record: memoryview) -> Any:
    """Return the sample; large arrays are views of the record, read-only where it is."""
    count, length = _HEAD.unpack_from(record)
    sizes = struct.unpack_from(f'={count}Q', record, _HEAD.size)
    start = _HEAD.size + 8 * count
    offset, buffers = start + length, []
    for size in sizes:
        offset += -offset % ALIGNMENT
        buffers.append(record[offset : offset + size])
        offset += size
    return pickle.loads(record[start : start + length], buffers=buffers)


class _Pickler(pickle.Pickler):
    """A pickler that separates large arrays, also those with gaps, and tensors as arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.flags.forc and not value.dtype.hasobject:
            return np.ascontiguousarray(value).__reduce_ex__(5)
        if is_plain(value) and value.numel():
            flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return _to_tensor, (flat, value.dtype, tuple(value.shape))
        return NotImplemented


def _to_tensor(flat: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    # Torch has no read-only tensors, so a tensor gets a copy.
    return torch.from_numpy(flat.copy()).view(dtype).reshape(shape)


def _padding(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)
