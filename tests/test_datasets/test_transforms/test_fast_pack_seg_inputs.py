"""Packed samples equal those of stock, except for the type of the labels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.datasets.transforms import PackSegInputs

from mmtempo.datasets.transforms.fast_pack_seg_inputs import FastPackSegInputs
from mmtempo.loaders import stack_collate
from tests.testing.transforms_against_stock import read_only, sample


def check(results: dict, packed: torch.dtype = torch.uint8, **arguments: tuple) -> dict:
    ours = FastPackSegInputs(**arguments)(dict(results))
    stock = PackSegInputs(**arguments)(dict(results))
    assert list(ours) == list(stock)
    if 'inputs' in stock:
        assert torch.equal(ours['inputs'], stock['inputs'])
        assert ours['inputs'].dtype == stock['inputs'].dtype
        assert ours['inputs'].is_contiguous()
    mine, theirs = ours['data_samples'], stock['data_samples']
    assert mine.metainfo == theirs.metainfo
    assert set(mine.keys()) == set(theirs.keys())
    for name, field in theirs.items():
        assert isinstance(mine.get(name), PixelData)
        assert torch.equal(mine.get(name).data.to(field.data.dtype), field.data)
        if name != 'gt_depth_map':
            assert mine.get(name).data.dtype == packed
    return ours


def test_byte_labels_stay_bytes() -> None:
    results = sample()
    results['gt_edge_map'] = (results['gt_seg_map'] == 1).astype(np.uint8)
    results['gt_depth_map'] = np.ones((48, 64), np.float32)
    results['flip'] = True
    check(results)
    check(results, meta_keys=('flip', 'ori_shape'))


def test_samples_without_labels_or_image() -> None:
    results = sample()
    del results['gt_seg_map']
    assert 'gt_sem_seg' not in check(results)['data_samples']
    results = sample()
    del results['img']
    assert 'inputs' not in check(results)


@pytest.mark.parametrize('view', [np.s_[3:20, 5:30], np.s_[:, ::-1], np.s_[::2, ::3]])
def test_packed_tensors_share_no_memory(view: tuple) -> None:
    results = sample()
    results = read_only({key: results[key] for key in ('img', 'gt_seg_map')})
    part = {key: value[view] for key, value in results.items()}
    with warnings.catch_warnings():
        warnings.simplefilter('error')  # about read-only memory in a tensor
        packed = FastPackSegInputs()(dict(part))
    label = packed['data_samples'].gt_sem_seg.data
    np.testing.assert_array_equal(label[0].numpy(), part['gt_seg_map'])
    np.testing.assert_array_equal(packed['inputs'].permute(1, 2, 0).numpy(), part['img'])
    # No larger storage, or the worker would send all of it.
    assert label.untyped_storage().nbytes() == label.numel()
    assert packed['inputs'].untyped_storage().nbytes() == packed['inputs'].numel()
    for tensor in (label, packed['inputs']):
        for array in results.values():
            assert not np.shares_memory(tensor.numpy(), array)


def test_copy_false_leaves_the_copy_to_stack_collate() -> None:
    results = sample()
    packed = FastPackSegInputs(copy=False)(dict(results))
    stock = PackSegInputs()(dict(results))
    assert torch.equal(packed['inputs'], stock['inputs'])
    label = packed['data_samples'].gt_sem_seg.data
    assert torch.equal(label.long(), stock['data_samples'].gt_sem_seg.data)
    assert np.shares_memory(packed['inputs'].numpy(), results['img'])
    assert np.shares_memory(label.numpy(), results['gt_seg_map'])
    batch = stack_collate([packed, packed])
    assert batch['inputs'].is_contiguous()
    assert torch.equal(batch['inputs'], torch.stack([stock['inputs']] * 2))
    for tensor in (batch['inputs'], batch['data_samples'].stacked['gt_sem_seg']):
        for array in (results['img'], results['gt_seg_map']):
            assert not np.shares_memory(tensor.numpy(), array)


@pytest.mark.parametrize('view', [np.s_[3:20, 5:30], np.s_[:, ::-1], np.s_[:]])
def test_copy_false_copies_read_only_and_strided_arrays(view: tuple) -> None:
    results = {key: sample()[key] for key in ('img', 'gt_seg_map')}
    part = {key: value[view] for key, value in results.items()}
    if view == np.s_[:]:
        read_only(part)
    with warnings.catch_warnings():
        warnings.simplefilter('error')  # about read-only memory in a tensor
        packed = FastPackSegInputs(copy=False)(dict(part))
    label = packed['data_samples'].gt_sem_seg.data
    np.testing.assert_array_equal(packed['inputs'].permute(1, 2, 0).numpy(), part['img'])
    np.testing.assert_array_equal(label[0].numpy(), part['gt_seg_map'])
    for tensor in (packed['inputs'], label):
        for array in results.values():
            assert not np.shares_memory(tensor.numpy(), array)


def test_mutable_meta_information_is_copied() -> None:
    results = sample()
    values = dict(a=[1, [2]], b={'c': [3]}, d=(4, [5]), e=np.arange(3), f=None, g=(6, 'g', 0.5))
    results.update(values)
    keys = ('img_path', 'ori_shape', *values, 'h')
    packed = FastPackSegInputs(meta_keys=keys)(dict(results))['data_samples']
    stock = PackSegInputs(meta_keys=keys)(dict(results))['data_samples']
    assert set(packed.metainfo_keys()) == set(stock.metainfo_keys())
    np.testing.assert_equal(packed.metainfo, stock.metainfo)
    for key in 'abde':
        assert packed.metainfo[key] is not values[key]
    assert packed.d[1] is not values['d'][1]
    assert packed.b['c'] is not values['b']['c']


@pytest.mark.parametrize('channels', [0, 1, 4])
def test_other_images_are_packed_by_stock(channels: int) -> None:
    results = sample()
    image = results['img']
    results['img'] = image.repeat(2, 2)[..., :channels] if channels else image[..., 0]
    check(results)
    results['img'] = results['img'].astype(np.float32)
    check(results)


def test_other_labels_are_packed_by_stock() -> None:
    results = sample()
    results['gt_seg_map'] = results['gt_seg_map'].astype(np.int16)
    check(results, packed=torch.int64)
    results['gt_seg_map'] = np.ones((2, 48, 64), np.uint8)
    with pytest.warns(UserWarning, match='usually the segmentation map is 2D'):
        check(results, packed=torch.int64)
