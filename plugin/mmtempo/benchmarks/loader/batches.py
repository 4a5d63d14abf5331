"""Count the bytes that a worker sends for a batch."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, TRANSFORMS
from mmseg.datasets.transforms import PackSegInputs

from mmtempo.loaders import stack_collate
from mmtempo.workloads.bev.datasets.transforms.pack_bev_inputs import META_KEYS
from mmtempo.workloads.bev.structures.labels import IGNORE_BIT

from .pictures import bev_dataset

# Planes of 14 classes and of the ignored cells.
PLANES = IGNORE_BIT + 1


@dataclass(frozen=True)
class Parcel:
    """Size of a batch that is sent to another process.

    Attributes:
        pickled: Bytes through the pipe.
        shared: Bytes in shared memory.
        segments: Number of segments of shared memory, each an open file.
    """

    pickled: int
    shared: int
    segments: int

    @property
    def bytes(self) -> int:
        return self.pickled + self.shared


class _Weigher(ForkingPickler):
    """Pickler of worker processes that records the storages of tensors instead of sharing them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.storages: dict[int, int] = {}
        self.dispatch_table[torch.UntypedStorage] = self._record

    def _record(self, storage: torch.UntypedStorage) -> tuple:
        if storage.nbytes():
            self.storages[storage.data_ptr()] = storage.nbytes()
        return int, (storage.data_ptr(),)


def weigh(batch: Any) -> Parcel:
    """Return the size of a batch as workers of torch send it."""
    file = io.BytesIO()
    weigher = _Weigher(file)
    weigher.dump(batch)
    return Parcel(len(file.getbuffer()), sum(weigher.storages.values()), len(weigher.storages))


def bev_batches(root: str, batch: int) -> dict[str, Any]:
    """Return a batch of the same samples, packed and collated in three ways.

    Args:
        root: Folder that `write_pictures` has filled.
        batch: Number of samples.
    """
    config = bev_dataset(root, (800, 600))
    pack: Callable = TRANSFORMS.build(config['pipeline'].pop())
    dataset = DATASETS.build(config)
    results = [dataset[index] for index in range(batch)]
    return {
        'stock, int64 planes': pseudo_collate([_pack_planes(dict(one)) for one in results]),
        'stock, our packed label': pseudo_collate([pack(dict(one)) for one in results]),
        'ours': stack_collate([pack(dict(one)) for one in results]),
    }


def _pack_planes(results: dict) -> dict:
    """Pack a label as mmseg does: int64, with a plane for each class and one of ignored cells."""
    bits = np.arange(PLANES, dtype=np.uint16)[:, None, None]
    results['gt_seg_map'] = (results['gt_bev'][None] >> bits) & np.uint16(1)
    with warnings.catch_warnings():  # PackSegInputs expects one plane, but packs several
        warnings.simplefilter('ignore')
        return PackSegInputs(meta_keys=META_KEYS)(results)
