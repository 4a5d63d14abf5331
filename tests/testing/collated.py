"""Samples of many kinds to collate, and comparison of batches with those of stock."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmseg.structures import SegDataSample

from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration

Pair = namedtuple('Pair', 'first second')


SIZE = (8, 12)


def image(index: int, size: tuple[int, int] = SIZE) -> torch.Tensor:
    rng = np.random.default_rng(index)
    return torch.from_numpy(rng.integers(0, 256, (3, *size), dtype=np.uint8))


def bev(index: int) -> dict:
    calibration = Calibration.native(np.diag([100.0 + index, 90.0, 1.0]), (1600, 900))
    sample = BEVDataSample(metainfo=dict(token=f'{index}', calibration=calibration))
    sample.gt_bev = torch.full((5, 6), index, dtype=torch.int16)
    return dict(inputs=image(index), data_samples=sample)


def seg(index: int, size: tuple[int, int] = SIZE) -> dict:
    sample = SegDataSample(metainfo=dict(img_path=f'{index}.png', ori_shape=size))
    sample.gt_sem_seg = PixelData(data=torch.full((1, *size), index))
    return dict(inputs=image(index, size), data_samples=sample)


def seg_of_many_sizes(index: int) -> dict:
    return seg(index, (8 + index, 12))


def det(index: int) -> dict:
    data = dict(bboxes=torch.rand(index, 4), labels=torch.arange(index), names=['x'] * index)
    sample = BaseDataElement(metainfo=dict(img_id=index))
    sample.gt_instances = InstanceData(metainfo=dict(source='file'), **data)
    sample.proposals = InstanceData(bboxes=torch.full((2, 4), float(index)))
    return dict(inputs=image(index), data_samples=sample)


def mixed(index: int) -> dict:
    """Fields that some samples lack, and fields that are not plain tensors of one shape."""
    sample = BEVDataSample(metainfo=dict(weights=torch.ones(2)))
    sample.set_data(dict(array=np.arange(3), word='a', none=None, sparse=torch.eye(2).to_sparse()))
    sample.depth = torch.zeros(3, dtype=torch.float16 if index else torch.float32)
    sample.learnt = torch.nn.Parameter(torch.zeros(2))
    sample.with_gradient = torch.zeros(2, requires_grad=True)
    if index != 1:
        sample.gt_bev = torch.zeros(2, 3)
    return dict(data_samples=sample)


def plain(index: int) -> dict:
    return dict(
        image=image(index),
        text='word',
        raw=b'x',
        number=index,
        ratio=0.5,
        nothing=None,
        array=np.arange(3),
        scalar=torch.tensor(index),
        ragged=torch.arange(index),
        nested=dict(box=torch.full((4,), index), names=['a', 'b']),
        pair=Pair(torch.ones(2), index),
        views=[image(index), image(index + 1)],
        tuple=(torch.zeros(2), 'a'),
        range=range(2),
    )


def augmented(index: int) -> dict:
    """Lists of views, as for test-time augmentation."""
    one, other = seg(index), seg(index + 10)
    return {key: [one[key], other[key]] for key in one}


def in_tuple(index: int) -> tuple:
    return image(index), bev(index)['data_samples'], index


def bare(index: int) -> Any:
    return bev(index)['data_samples']


def same(ours: Any, stock: Any, path: str = 'batch') -> None:
    """Assert that a batch equals that of stock."""
    if isinstance(stock, BaseDataElement):
        assert type(ours) is type(stock), path
        assert set(ours.keys()) == set(stock.keys()), path
        # mmengine stores the names in sets, so their order varies.
        same(*(dict(sorted(each.metainfo_items())) for each in (ours, stock)), f'{path}.metainfo')
        for key in set(stock.keys()):
            same(getattr(ours, key), getattr(stock, key), f'{path}.{key}')
    elif isinstance(stock, torch.Tensor):
        assert type(ours) is type(stock), path
        assert (ours.dtype, ours.layout) == (stock.dtype, stock.layout), path
        torch.testing.assert_close(ours, stock, rtol=0, atol=0)
    elif isinstance(stock, np.ndarray):
        np.testing.assert_array_equal(ours, stock)
    elif isinstance(stock, dict):
        assert type(ours) is type(stock), path
        assert list(ours) == list(stock), path
        for key in stock:
            same(ours[key], stock[key], f'{path}.{key}')
    elif isinstance(stock, (list, tuple)):
        # Ours may stack a list of tensors, and has a SampleBatch for a list of data samples.
        assert type(ours) in (type(stock), torch.Tensor, SampleBatch), path
        assert len(ours) == len(stock), path
        for index, (one, other) in enumerate(zip(ours, stock)):
            same(one, other, f'{path}[{index}]')
    elif isinstance(stock, Calibration):
        same(vars(ours), vars(stock), path)
    else:
        assert ours == stock, path


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, BaseDataElement):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


def storages(batch: Any) -> dict[int, torch.UntypedStorage]:
    """Return the storages of a batch's tensors by address."""
    found = [tensor.untyped_storage() for tensor in tensors(batch)]
    return {storage.data_ptr(): storage for storage in found}
