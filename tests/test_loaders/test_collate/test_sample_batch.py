"""Batches of data samples whose fields are views of stacked tensors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from mmengine.dataset import pseudo_collate

from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.loaders.collate.stack_collate import stack_collate
from mmtempo.loaders.shared_slabs import ALIGNMENT, Packed, SlabPool, pack
from mmtempo.workloads.bev.models import bev_data_preprocessor
from mmtempo.workloads.bev.models.bev_data_preprocessor import BEVDataPreprocessor
from tests.testing.collated import bare, bev, det, mixed, same, seg, seg_of_many_sizes, storages


def test_stacked_fields_have_public_names() -> None:
    samples = SampleBatch.of([det(2)['data_samples'], det(2)['data_samples']])
    assert sorted(samples.stacked) == [
        'gt_instances.bboxes',
        'gt_instances.labels',
        'proposals.bboxes',
    ]
    differing = SampleBatch.of([det(index)['data_samples'] for index in range(3)])
    assert sorted(differing.stacked) == ['proposals.bboxes']
    assert SampleBatch.of([mixed(index)['data_samples'] for index in range(3)]).stacked == {}


@pytest.mark.parametrize('size', [(5, 7), (1, 1), (1, 9), (9, 1), (64, 48)])
def test_images_with_interleaved_colors_are_stacked(size: tuple[int, int]) -> None:
    height, width = size
    whole = torch.randint(0, 256, (4, height + 2, width + 3, 3), dtype=torch.uint8)
    before = whole.clone()
    pixels = whole.permute(0, 3, 1, 2)
    cut = [each[:, 1:-1, 2:-1] for each in pixels]
    row = torch.randint(0, 256, (1, width, 3), dtype=torch.uint8).expand(height, -1, -1)
    repeated = [row.permute(2, 0, 1)] * 2
    mixed = [cut[0], cut[1].contiguous()]
    for images in (list(pixels), cut, repeated, mixed, [image[:2] for image in cut]):
        stacked = stack_collate(images)
        assert torch.equal(stacked, torch.stack(images))
        assert stacked.is_contiguous()
        stacked.zero_()
    assert torch.equal(whole, before)


def test_images_with_interleaved_colors_are_split_in_the_slab() -> None:
    pool = SlabPool(1 << 20)
    images = torch.randint(0, 256, (4, 33, 47, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    packed = pack(pool.lease(), stack_collate, list(images))
    assert isinstance(packed, Packed)
    assert len(packed.content) < 1000
    assert images.numel() <= packed.needed < images.numel() + ALIGNMENT
    assert torch.equal(packed.read(), images)
    pool.close()


def reverse(samples: list) -> None:
    samples.reverse()


def shorten(samples: list) -> None:
    samples.pop()


def replace(samples: list) -> None:
    samples[1].gt_bev = samples[1].gt_bev + 1


def narrow(samples: list) -> None:
    samples[0].gt_bev = samples[0].gt_bev[:, :3]


def delete(samples: list) -> None:
    del samples[2].gt_bev


def reinterpret(samples: list) -> None:
    samples[0].gt_bev = samples[0].gt_bev.view(torch.float16)


def swap_sample(samples: list) -> None:
    samples[0] = bare(7)


def swap_for_another_thing(samples: list) -> None:
    samples[0] = dict(gt_bev=1)


CHANGES = [
    reverse,
    shorten,
    replace,
    narrow,
    delete,
    reinterpret,
    swap_sample,
    swap_for_another_thing,
]


@pytest.mark.parametrize('change', CHANGES)
def test_changed_samples_are_neither_hidden_nor_lost(change: Any) -> None:
    """A stacked tensor must not hide changes of samples after collation."""
    samples = stack_collate([bare(index) for index in range(3)])
    assert list(samples.stacked) == ['gt_bev']
    change(samples)
    assert samples.stacked == {}
    same(pickle.loads(pickle.dumps(samples)), samples)
    same(samples.apply(torch.clone), samples)


def test_changes_that_keep_the_views_keep_the_stacked_field() -> None:
    samples = stack_collate([bare(index) for index in range(3)])
    samples[0].gt_bev.add_(5)
    samples[1] = samples[1].clone()
    samples[2].pred = torch.zeros(3)
    assert samples.stacked['gt_bev'][0, 0, 0] == 5
    there = pickle.loads(pickle.dumps(samples))
    same(there, samples)
    assert list(there.stacked) == ['gt_bev']
    assert type(samples)(each.to('cpu') for each in samples).stacked == {}  # as cast_data does


def pin(monkeypatch: pytest.MonkeyPatch, batch: Any) -> tuple[Any, list[torch.Tensor]]:
    """Pin a batch as torch does, with a fake `Tensor.pin_memory`; also return what was pinned."""
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = []

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, 'pin_memory', fake)
    return pin_memory(batch), pinned


@pytest.mark.parametrize('make', [bev, seg])
def test_each_stacked_tensor_is_pinned_once(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    samples = [make(index) for index in range(4)]
    batch, pinned = pin(monkeypatch, stack_collate(samples))
    assert [len(tensor) for tensor in pinned] == [4, 4]
    memory = {tensor.untyped_storage().data_ptr() for tensor in pinned}
    assert set(storages(batch)) == memory
    (labels,) = batch['data_samples'].stacked.values()
    assert labels is pinned[1]
    same(batch, pseudo_collate(samples))


def test_fields_that_are_not_stacked_are_pinned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, pinned = pin(monkeypatch, stack_collate([seg_of_many_sizes(i) for i in range(2)]))
    assert len(pinned) == 4
    assert set(storages(batch)) == {tensor.untyped_storage().data_ptr() for tensor in pinned}


@pytest.mark.parametrize('change', [None, replace, reverse])
def test_bev_preprocessor_uses_stacked_labels(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """It copies the stacked labels, unless a hook has replaced a sample's label."""
    crossed = []

    def cross(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        crossed.append(tensor)
        return tensor

    monkeypatch.setattr(bev_data_preprocessor, 'to_device', cross)
    ours, stock = (
        collate([bev(i) for i in range(3)]) for collate in (stack_collate, pseudo_collate)
    )
    labels = ours['data_samples'].stacked['gt_bev']
    for batch in (ours, stock):
        if change is not None:
            change(batch['data_samples'])
    results = [BEVDataPreprocessor()(batch, training=True) for batch in (ours, stock)]
    same(*results)
    assert (crossed[1] is labels) == (change is None)
