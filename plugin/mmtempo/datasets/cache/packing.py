"""A sample as one row of bytes, whose arrays are not copied when it is read."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import numpy as np
import torch

ALIGNMENT = 64
# Smaller arrays are copied: to find them costs more.
SMALL = 1024
_HEAD = struct.Struct('=II')


def pack(sample: Any) -> list[bytes | memoryview]:
    """What to write one after the other; each large buffer begins at a multiple of 64."""
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
    parts: list[bytes | memoryview] = [head, pickled, _gap(len(head) + len(pickled))]
    for buffer in buffers:
        parts += [buffer, _gap(buffer.nbytes)]
    return parts


def unpack(record: memoryview) -> Any:
    """The sample; its large arrays are views of the record, and read-only where that is."""
    count, length = _HEAD.unpack_from(record)
    sizes = struct.unpack_from(f'={count}Q', record, _HEAD.size)
    start = _HEAD.size + 8 * count
    place, buffers = start + length, []
    for size in sizes:
        place += -place % ALIGNMENT
        buffers.append(record[place : place + size])
        place += size
    return pickle.loads(record[start : start + length], buffers=buffers)


class _Pickler(pickle.Pickler):
    """Puts large arrays aside, also those with gaps; and tensors as arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.flags.forc and not value.dtype.hasobject:
            return np.ascontiguousarray(value).__reduce_ex__(5)
        if type(value) is torch.Tensor and _is_plain(value):
            flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return _to_tensor, (flat, value.dtype, tuple(value.shape))
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.device.type == 'cpu' and tensor.layout == torch.strided
    odd = (
        not tensor.numel()
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
    )
    return strided and not odd


def _to_tensor(flat: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    # Torch knows no tensor that is read-only: it gets memory of its own.
    return torch.from_numpy(flat.copy()).view(dtype).reshape(shape)


def _gap(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)
