"""Batches equal those of stock, in few shared memory segments."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing
from mmengine.dataset import pseudo_collate
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import FUNCTIONS
from mmengine.runner import Runner
from mmseg.models.data_preprocessor import SegDataPreProcessor
from torch.utils.data import DataLoader, Dataset

from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.loaders.collate.stack_collate import stack_collate
from mmtempo.models.sparse_seg_data_preprocessor import SparseSegDataPreProcessor
from tests.testing.collated import (
    SIZE,
    augmented,
    bare,
    bev,
    det,
    in_tuple,
    mixed,
    plain,
    same,
    seg,
    seg_of_many_sizes,
    storages,
    tensors,
)

SEG: dict[str, Any] = dict(mean=[120.0] * 3, std=[60.0] * 3, bgr_to_rgb=True)


class Handles(ForkingPickler):
    """A pickler that records the bytes of each storage whose handle torch would send."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.UntypedStorage):
            self.sent.append(value.nbytes())
            return int, (0,)
        return NotImplemented


def handles(batch: Any) -> tuple[list[int], int]:
    """Return the bytes of each shared memory segment, and the bytes that pass the pipe."""
    pipe = io.BytesIO()
    pickler = Handles(pipe)
    pickler.sent = []
    pickler.dump(batch)
    return pickler.sent, len(pipe.getvalue())


MAKERS = [bev, seg, seg_of_many_sizes, det, mixed, plain, augmented, in_tuple, bare]


@pytest.mark.parametrize('make', MAKERS)
@pytest.mark.parametrize('count', [1, 4])
def test_batch_equals_that_of_stock(make: Any, count: int) -> None:
    torch.manual_seed(0)
    samples = [make(index) for index in range(count)]
    stock = pseudo_collate(copy.deepcopy(samples))
    batch = stack_collate(samples)
    same(batch, stock)
    same(pickle.loads(pickle.dumps(batch)), stock)
    same(copy.deepcopy(batch), stock)
    same(copy.copy(batch), stock)


def test_quantized_and_nested_tensors_are_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torch deprecates both
        odd = [
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        ]
    for tensor in odd:
        batch = stack_collate([dict(x=tensor)] * 2)
        assert all(each is tensor for each in batch['x'])


def test_each_key_becomes_one_tensor() -> None:
    batch = stack_collate([seg(index) for index in range(3)])
    assert isinstance(batch['inputs'], torch.Tensor)
    samples = batch['data_samples']
    labels = samples.stacked['gt_sem_seg']
    assert labels.shape == (3, 1, *SIZE)
    samples[1].gt_sem_seg.data[:] = 9
    assert labels[1].unique().tolist() == [9]
    assert labels[2].unique().tolist() == [2]
    assert len(storages(batch)) == 2


def test_changes_of_a_batch_do_not_reach_the_dataset() -> None:
    """Tensors that are not stacked are copied as well."""
    label = torch.arange(6, dtype=torch.int16).view(2, 3)
    cached = [seg(0), seg(1), seg(2, (4, 4))]
    cached[0]['data_samples'].gt_bev = label
    before = copy.deepcopy(cached)
    labels = [sample['data_samples'].gt_sem_seg for sample in cached]
    for samples in (cached, cached[:2]):
        batch = stack_collate(samples)
        for tensor in tensors(batch):
            tensor.zero_()
        for sample in batch['data_samples']:
            sample.gt_sem_seg.more = torch.zeros_like(sample.gt_sem_seg.data)
            del sample.gt_sem_seg
            sample.set_metainfo(dict(flip=True))
    same(cached, before)
    assert all(sample['data_samples'].gt_sem_seg is each for sample, each in zip(cached, labels))


# Across processes


class Samples(Dataset):
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def collate_and_count(collate: Any, samples: list) -> tuple[Any, tuple[list[int], int], bool]:
    """Collate in a worker; also return what is sent, and whether it is shared already."""
    batch = collate(samples)
    # Empty tensors have no memory to share.
    found = [tensor.untyped_storage() for tensor in tensors(batch)]
    shared = all(storage.is_shared() == (storage.nbytes() > 0) for storage in found)
    return batch, handles(batch), shared


def through_a_worker(make: Any, context: str, collate: Any = stack_collate) -> Any:
    loader = DataLoader(
        Samples(make),
        batch_size=4,
        num_workers=1,
        collate_fn=partial(collate_and_count, collate),
        multiprocessing_context=context,
    )
    (result,) = loader
    return result


@pytest.fixture(params=['file_descriptor', 'file_system'])
def strategy(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield
    torch.multiprocessing.set_sharing_strategy(before)


def check_two_segments(make: Any, context: str) -> None:
    batch, (sent, piped), shared = through_a_worker(make, context)
    stock = pseudo_collate([make(index) for index in range(4)])
    same(batch, stock)
    samples = batch['data_samples']
    (labels,) = samples.stacked.values()
    # Two whole segments are sent, made in shared memory, and the views refer to them.
    assert sorted(sent) == sorted([batch['inputs'].nbytes, labels.nbytes])
    assert shared
    assert len(storages(batch)) == 2
    assert all(storage.is_shared() for storage in storages(batch).values())
    stock_sent, stock_piped = handles(stock)
    assert len(stock_sent) == 8
    assert sum(sent) == sum(stock_sent)
    assert piped < stock_piped


@pytest.mark.usefixtures('strategy')
@pytest.mark.parametrize('make', [bev, seg])
def test_batch_crosses_in_two_segments(make: Any) -> None:
    check_two_segments(make, 'fork')


@pytest.mark.slow  # the worker imports all modules
def test_batch_of_spawned_worker_crosses_in_two_segments() -> None:
    check_two_segments(bev, 'spawn')


@pytest.mark.usefixtures('strategy')
def test_batch_that_is_not_stacked_crosses_in_shared_memory() -> None:
    """Empty tensors have no memory to share."""
    torch.manual_seed(0)
    batch, (sent, _), shared = through_a_worker(seg_of_many_sizes, 'fork')
    same(batch, pseudo_collate([seg_of_many_sizes(index) for index in range(4)]))
    assert len(sent) == 8
    assert shared
    batch, _, shared = through_a_worker(det_without_boxes, 'fork')
    same(batch, pseudo_collate([det_without_boxes(index) for index in range(4)]))
    assert shared


def det_without_boxes(index: int) -> dict:
    return det(0)


def test_training_process_collates_in_private_memory() -> None:
    batch = stack_collate([bev(index) for index in range(4)])
    assert not any(storage.is_shared() for storage in storages(batch).values())


def test_stock_loader_finds_stack_collate_by_name() -> None:
    assert FUNCTIONS.get('stack_collate') is stack_collate
    loader = Runner.build_dataloader(
        dict(
            dataset=Samples(bev),
            batch_size=4,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='stack_collate'),
        )
    )
    (batch,) = loader
    assert batch['inputs'].shape == (4, 3, *SIZE)
    assert type(batch['data_samples']) is SampleBatch


# What models make of it


@pytest.mark.parametrize('cls', [SegDataPreProcessor, SparseSegDataPreProcessor])
@pytest.mark.parametrize(
    ('make', 'training', 'options'),
    [
        (seg, True, dict(size=(16, 16), **SEG)),
        (seg, True, dict(size=SIZE)),
        (seg, False, dict(size=SIZE, **SEG)),
        (seg, False, dict(size=SIZE, test_cfg=dict(size_divisor=32), **SEG)),
        (seg_of_many_sizes, True, dict(size_divisor=16, **SEG)),  # test images have one size
    ],
)
def test_preprocessors_of_mmseg_accept_the_batch(
    cls: Any, make: Any, training: bool, options: dict
) -> None:
    samples = [make(index) for index in range(3)]
    ours, stock = (
        cls(**options)(collate(copy.deepcopy(samples)), training)
        for collate in (stack_collate, pseudo_collate)
    )
    same(ours, stock)


def test_preprocessor_of_mmengine_accepts_the_batch() -> None:
    samples = [seg(index) for index in range(3)]
    preprocessor = ImgDataPreprocessor([1.0] * 3, [2.0] * 3, pad_size_divisor=16, bgr_to_rgb=True)
    ours, stock = (preprocessor(collate(samples)) for collate in (stack_collate, pseudo_collate))
    same(ours, stock)


@pytest.mark.parametrize(
    ('samples', 'message'),
    [
        ([dict(x=1, y=2), dict(x=1)], r"sample 1 of the batch has no key 'y'.*found \['x'\]"),
        ([dict(a=dict(x=1)), dict(a={})], "no key 'a.x'"),
        ([dict(a=dict(x=1)), dict(a=3)], 'a: sample 1 of the batch is a int, sample 0 a dict'),
        ([dict(a=[1]), dict(a=3)], 'a: sample 1 of the batch is a int, sample 0 a list'),
        ([dict(a=[1, 2]), dict(a=[1])], 'a: sample 1 of the batch has 1 items, sample 0 has 2'),
        ([(1, 2), (1,)], 'the samples: sample 1 of the batch has 1 items'),
    ],
)
def test_samples_that_do_not_match_are_errors(samples: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stack_collate(samples)
