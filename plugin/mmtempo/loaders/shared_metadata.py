"""What a data set knows of its samples, once for all workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset


class SharedArray(np.ndarray):
    """An array whose memory is handed to a worker, and not copied into it."""

    _memory: torch.Tensor

    @classmethod
    def of(cls, memory: torch.Tensor) -> SharedArray:
        shared = memory.numpy().view(cls)
        shared._memory = memory
        return shared

    def __reduce__(self) -> Any:
        # What was cut out of it has an array's own way.
        memory = getattr(self, '_memory', None)
        if memory is None:
            return np.asarray(self).__reduce__()
        return SharedArray.of, (memory,)


def share_metadata(dataset: Any) -> None:
    """Where workers are spawned, let them have the same list of samples as this process.

    mmengine's data sets keep it in one large array, which each spawned worker would get a copy
    of, through a pipe; forked ones have it anyway.
    """
    for part in _parts(dataset):
        serialized = getattr(part, 'data_bytes', None)
        if isinstance(part, BaseDataset) and type(serialized) is np.ndarray and serialized.size:
            part.data_bytes = SharedArray.of(torch.from_numpy(serialized).share_memory_())


def _parts(dataset: Any) -> list[Any]:
    """The data set and those that it wraps."""
    found, seen = [dataset], set()
    for part in found:
        if id(part) in seen:
            continue
        seen.add(id(part))
        inner = getattr(part, '__dict__', {})
        found += [inner['dataset']] if 'dataset' in inner else []
        found += list(inner.get('datasets', []))
    return found
