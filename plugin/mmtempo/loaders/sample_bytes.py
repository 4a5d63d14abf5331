"""How much there is in a sample or a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def check_sample_bytes(batch: Any) -> int:
    """Bytes of tensors and arrays in a sample or a batch, however nested.

    What lies in the same memory counts once: a batch may hold views next to what they view.
    """
    viewed: dict[Any, list[int]] = {}
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()
            key, whole = storage.data_ptr(), storage.nbytes()
        else:
            key, whole = id(leaf), leaf.nbytes
        viewed.setdefault(key, [whole, 0])[1] += leaf.nbytes
    return sum(min(both) for both in viewed.values())


def count_segments(batch: Any) -> int:
    """Pieces of shared memory, each an open file, in which torch sends a batch."""
    tensors = (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.nbytes)
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


def _leaves(part: Any) -> Iterator[Any]:
    """Tensors and arrays."""
    if isinstance(part, (torch.Tensor, np.ndarray)):
        yield part
    elif isinstance(part, (list, tuple)):
        for one in part:
            yield from _leaves(one)
    elif callable(getattr(part, 'values', None)):  # dicts, and mmengine's data elements
        yield from _leaves(list(part.values()))
