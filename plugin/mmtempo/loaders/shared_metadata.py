"""Share the sample list of a dataset with spawned workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset

from mmtempo.utils.datasets import datasets_in


class SharedArray(np.ndarray):
    """An array in shared memory, which is pickled for a worker by its handle, without a copy."""

    _memory: torch.Tensor

    @classmethod
    def of(cls, memory: torch.Tensor) -> SharedArray:
        shared = memory.numpy().view(cls)
        shared._memory = memory
        return shared

    def __reduce__(self) -> Any:
        # A slice has no handle, so it is pickled by value, as a plain array.
        memory = getattr(self, '_memory', None)
        if memory is None:
            return np.asarray(self).__reduce__()
        return SharedArray.of, (memory,)


def share_metadata(dataset: Any) -> None:
    """Move the sample lists of mmengine's datasets to shared memory.

    mmengine serializes the list into one large array. Forked workers share its pages with this
    process, but each spawned worker would receive a copy through a pipe.

    Args:
        dataset: A dataset; datasets that it wraps are included.
    """
    for part in datasets_in(dataset):
        serialized = getattr(part, 'data_bytes', None)
        if isinstance(part, BaseDataset) and type(serialized) is np.ndarray and serialized.size:
            part.data_bytes = SharedArray.of(torch.from_numpy(serialized).share_memory_())
