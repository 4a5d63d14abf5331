"""What a batch costs to send from a worker to the training."""

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

# 14 classes, and what to ignore.
PLANES = IGNORE_BIT + 1
# As in configs/_base_/datasets/nuscenes_bev.py.
PIPELINE = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='BEVResize', scale=(800, 600)),
    dict(type='BEVRandomFlip', prob=0.5),
    dict(type='PackBEVInputs'),
]


@dataclass(frozen=True)
class Parcel:
    """What goes from one process to another.

    Attributes:
        pickled: Bytes through the pipe.
        shared: Bytes in shared memory.
        segments: Pieces of it, each an open file.
    """

    pickled: int
    shared: int
    segments: int

    @property
    def bytes(self) -> int:
        return self.pickled + self.shared


class _Weigher(ForkingPickler):
    """Pickles as a worker does, but for the storages of tensors: those it only looks at."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.storages: dict[int, int] = {}
        self.dispatch_table[torch.UntypedStorage] = self._note

    def _note(self, storage: torch.UntypedStorage) -> tuple:
        if storage.nbytes():
            self.storages[storage.data_ptr()] = storage.nbytes()
        return int, (storage.data_ptr(),)


def weigh(batch: Any) -> Parcel:
    """What torch's workers send for a batch."""
    file = io.BytesIO()
    weigher = _Weigher(file)
    weigher.dump(batch)
    return Parcel(len(file.getbuffer()), sum(weigher.storages.values()), len(weigher.storages))


def bev_batches(root: str, batch: int) -> dict[str, Any]:
    """The same samples, packed and collated in three ways.

    Args:
        root: Where `write_pictures` has put the pictures.
        batch: How many samples.
    """
    dataset = DATASETS.build(
        dict(
            type='NuScenesBEVDataset',
            data_root=root,
            data_prefix=dict(img_path='img_dir/jpg', bev_path='ann_bev_dir'),
            pipeline=PIPELINE[:-1],
        )
    )
    results = [dataset[index] for index in range(batch)]
    pack: Callable = TRANSFORMS.build(PIPELINE[-1])
    return {
        'stock, int64 planes': pseudo_collate([_pack_planes(dict(one)) for one in results]),
        'stock, our packed label': pseudo_collate([pack(dict(one)) for one in results]),
        'ours': stack_collate([pack(dict(one)) for one in results]),
    }


def _pack_planes(results: dict) -> dict:
    """mmseg's own packing, of a label of a plane a class and one of what to ignore: int64."""
    bits = np.arange(PLANES, dtype=np.uint16)[:, None, None]
    results['gt_seg_map'] = (results['gt_bev'][None] >> bits) & np.uint16(1)
    with warnings.catch_warnings():  # it expects a single plane, and packs several
        warnings.simplefilter('ignore')
        return PackSegInputs(meta_keys=META_KEYS)(results)
