"""A batch is what stock's is, but lies in few pieces."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from mmengine.dataset import pseudo_collate
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import FUNCTIONS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.structures import SegDataSample
from torch.utils.data import DataLoader, Dataset

from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.loaders.collate.stack_collate import stack_collate
from mmtempo.loaders.shared_slabs import ALIGNMENT, Packed, SlabPool, pack
from mmtempo.models.sparse_seg_data_preprocessor import SparseSegDataPreProcessor
from mmtempo.workloads.bev.models import bev_data_preprocessor
from mmtempo.workloads.bev.models.bev_data_preprocessor import BEVDataPreprocessor
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration

Pair = namedtuple('Pair', 'first second')
SIZE = (8, 12)
SEG: dict[str, Any] = dict(mean=[120.0] * 3, std=[60.0] * 3, bgr_to_rgb=True)


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
    """Fields that some have only, and such as are no plain tensors of one shape and type."""
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
    """As of test-time augmentation."""
    one, other = seg(index), seg(index + 10)
    return {key: [one[key], other[key]] for key in one}


def in_tuple(index: int) -> tuple:
    return image(index), bev(index)['data_samples'], index


def bare(index: int) -> Any:
    return bev(index)['data_samples']


def same(ours: Any, stock: Any, path: str = 'batch') -> None:
    if isinstance(stock, BaseDataElement):
        assert type(ours) is type(stock), path
        assert set(ours.keys()) == set(stock.keys()), path
        # mmengine keeps the names in sets, which have no order.
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
        # Where stock has a list of tensors, one tensor is as good, and of samples a SampleBatch.
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
    """The pieces of memory that a batch lies in."""
    found = [tensor.untyped_storage() for tensor in tensors(batch)]
    return {storage.data_ptr(): storage for storage in found}


class Handles(ForkingPickler):
    """Notes the bytes behind each handle that torch would send."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.UntypedStorage):
            self.sent.append(value.nbytes())
            return int, (0,)
        return NotImplemented


def handles(batch: Any) -> tuple[list[int], int]:
    """Bytes of each piece of shared memory, and those that go through the pipe."""
    pipe = io.BytesIO()
    pickler = Handles(pipe)
    pickler.sent = []
    pickler.dump(batch)
    return pickler.sent, len(pipe.getvalue())


MAKERS = [bev, seg, seg_of_many_sizes, det, mixed, plain, augmented, in_tuple, bare]


@pytest.mark.parametrize('make', MAKERS)
@pytest.mark.parametrize('count', [1, 4])
def test_is_what_stock_gives(make: Any, count: int) -> None:
    torch.manual_seed(0)
    samples = [make(index) for index in range(count)]
    stock = pseudo_collate(copy.deepcopy(samples))
    batch = stack_collate(samples)
    same(batch, stock)
    same(pickle.loads(pickle.dumps(batch)), stock)
    same(copy.deepcopy(batch), stock)
    same(copy.copy(batch), stock)


def test_tensors_that_are_no_plain_bytes_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torch wants to give both of them up
        odd = [
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        ]
    for tensor in odd:
        batch = stack_collate([dict(x=tensor)] * 2)
        assert all(each is tensor for each in batch['x'])


def test_one_tensor_a_key() -> None:
    batch = stack_collate([seg(index) for index in range(3)])
    assert isinstance(batch['inputs'], torch.Tensor)
    samples = batch['data_samples']
    labels = samples.stacked['gt_sem_seg']
    assert labels.shape == (3, 1, *SIZE)
    samples[1].gt_sem_seg.data[:] = 9
    assert labels[1].unique().tolist() == [9]
    assert labels[2].unique().tolist() == [2]
    assert len(storages(batch)) == 2


@pytest.mark.parametrize('size', [(5, 7), (1, 1), (1, 9), (9, 1), (64, 48)])
def test_images_whose_colours_are_side_by_side(size: tuple[int, int]) -> None:
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


def test_their_colours_are_parted_in_the_slab() -> None:
    memory = SlabPool(1 << 20)
    images = torch.randint(0, 256, (4, 33, 47, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    packed = pack(memory.lend(), stack_collate, list(images))
    assert isinstance(packed, Packed)
    assert len(packed.content) < 1000
    assert images.numel() <= packed.needed < images.numel() + ALIGNMENT
    assert torch.equal(packed.read(), images)
    memory.close()


def test_names_of_stacked_fields() -> None:
    samples = SampleBatch.of([det(2)['data_samples'], det(2)['data_samples']])
    assert sorted(samples.stacked) == [
        'gt_instances.bboxes',
        'gt_instances.labels',
        'proposals.bboxes',
    ]
    differing = SampleBatch.of([det(index)['data_samples'] for index in range(3)])
    assert sorted(differing.stacked) == ['proposals.bboxes']
    assert SampleBatch.of([mixed(index)['data_samples'] for index in range(3)]).stacked == {}


def test_the_data_set_s_own_stays_its_own() -> None:
    """Also what is not stacked."""
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
def test_out_of_step(change: Any) -> None:
    """What was done to samples since is neither hidden by the stacked tensor nor lost."""
    samples = stack_collate([bare(index) for index in range(3)])
    assert list(samples.stacked) == ['gt_bev']
    change(samples)
    assert samples.stacked == {}
    same(pickle.loads(pickle.dumps(samples)), samples)
    same(samples.apply(torch.clone), samples)


def test_still_in_step() -> None:
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
    """torch's own walk through a batch, with a device to pin for."""
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = []

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, 'pin_memory', fake)
    return pin_memory(batch), pinned


@pytest.mark.parametrize('make', [bev, seg])
def test_one_pin_a_key(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    samples = [make(index) for index in range(4)]
    batch, pinned = pin(monkeypatch, stack_collate(samples))
    assert [len(tensor) for tensor in pinned] == [4, 4]
    memory = {tensor.untyped_storage().data_ptr() for tensor in pinned}
    assert set(storages(batch)) == memory
    (labels,) = batch['data_samples'].stacked.values()
    assert labels is pinned[1]
    same(batch, pseudo_collate(samples))


def test_pins_what_is_not_stacked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, pinned = pin(monkeypatch, stack_collate([seg_of_many_sizes(i) for i in range(2)]))
    assert len(pinned) == 4
    assert set(storages(batch)) == {tensor.untyped_storage().data_ptr() for tensor in pinned}


# Across processes


class Samples(Dataset):
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def collate_and_count(collate: Any, samples: list) -> tuple[Any, tuple[list[int], int], bool]:
    """In the worker: the batch, what it sends, and whether all is in shared memory before."""
    batch = collate(samples)
    # What is empty needs no piece of its own.
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


def check_few_pieces(make: Any, context: str) -> None:
    batch, (sent, piped), shared = through_a_worker(make, context)
    stock = pseudo_collate([make(index) for index in range(4)])
    same(batch, stock)
    samples = batch['data_samples']
    (labels,) = samples.stacked.values()
    # Only those two, whole; they were made where they are, and arrive where the views look.
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
def test_crosses_in_two_pieces(make: Any) -> None:
    check_few_pieces(make, 'fork')


@pytest.mark.slow  # it imports all there is
def test_crosses_in_two_pieces_from_a_spawned_worker() -> None:
    check_few_pieces(bev, 'spawn')


@pytest.mark.usefixtures('strategy')
def test_what_differs_crosses_too() -> None:
    """Tensors of no elements among them, which have no memory to share."""
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


def test_in_the_training_s_process_nothing_is_shared() -> None:
    batch = stack_collate([bev(index) for index in range(4)])
    assert not any(storage.is_shared() for storage in storages(batch).values())


def test_by_name_in_a_stock_loader() -> None:
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
        (seg_of_many_sizes, True, dict(size_divisor=16, **SEG)),  # tested are images of one size
    ],
)
def test_mmseg_s_preprocessors(cls: Any, make: Any, training: bool, options: dict) -> None:
    samples = [make(index) for index in range(3)]
    ours, stock = (
        cls(**options)(collate(copy.deepcopy(samples)), training)
        for collate in (stack_collate, pseudo_collate)
    )
    same(ours, stock)


def test_mmengine_s_preprocessor() -> None:
    samples = [seg(index) for index in range(3)]
    preprocessor = ImgDataPreprocessor([1.0] * 3, [2.0] * 3, pad_size_divisor=16, bgr_to_rgb=True)
    ours, stock = (preprocessor(collate(samples)) for collate in (stack_collate, pseudo_collate))
    same(ours, stock)


@pytest.mark.parametrize('change', [None, replace, reverse])
def test_bev_s_preprocessor(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Takes the labels as they are stacked, unless a hook gave a sample another one."""
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


@pytest.mark.parametrize(
    ('samples', 'says'),
    [
        ([dict(x=1, y=2), dict(x=1)], r"sample 1 of the batch has no key 'y'.*found \['x'\]"),
        ([dict(a=dict(x=1)), dict(a={})], "no key 'a.x'"),
        ([dict(a=dict(x=1)), dict(a=3)], 'a: sample 1 of the batch is a int, sample 0 a dict'),
        ([dict(a=[1]), dict(a=3)], 'a: sample 1 of the batch is a int, sample 0 a list'),
        ([dict(a=[1, 2]), dict(a=[1])], 'a: sample 1 of the batch has 1 items, sample 0 has 2'),
        ([(1, 2), (1,)], 'the samples: sample 1 of the batch has 1 items'),
    ],
)
def test_mistakes(samples: list, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stack_collate(samples)
