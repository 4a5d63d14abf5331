"""What comes out is what stock's comes out with, bit for bit; nobody waits for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mmengine.registry import FUNCTIONS, MODELS
from mmengine.structures import BaseDataElement, PixelData
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.structures import SegDataSample

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.models import sparse_seg_data_preprocessor
from mmtempo.models.sparse_seg_data_preprocessor import SparseSegDataPreProcessor

COLOURS: dict[str, Any] = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
SAME, OTHER = [(24, 32), (24, 32)], [(24, 32), (30, 20)]


def make_batch(
    shapes: list[tuple[int, int]],
    channels: int = 3,
    maps: tuple[str, ...] = ('gt_sem_seg',),
    stacked: bool = False,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    images, samples = [], []
    for index, (height, width) in enumerate(shapes):
        size = (channels, height, width)
        images.append(torch.randint(0, 256, size, dtype=torch.uint8, generator=generator))
        sample = SegDataSample(metainfo=dict(img_path=f'{index}.png', ori_shape=(height, width)))
        for name in maps:
            values = torch.randint(0, 19, (1, height, width), generator=generator)
            sample.set_data({name: PixelData(data=values)})
        samples.append(sample)
    return dict(inputs=torch.stack(images) if stacked else images, data_samples=samples)


def plain(data: Any) -> Any:
    """Down to what compares."""
    if isinstance(data, BaseDataElement):
        return (
            type(data),
            plain(data.metainfo),
            {key: plain(value) for key, value in data.items()},
        )
    if isinstance(data, torch.Tensor):
        return (data.dtype, tuple(data.shape), data.tolist())
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return (
            type(data),
            list(map(plain, data)),
        )  # torch.Size equals a tuple, but is read otherwise
    return data


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(
    ('arguments', 'batch'),
    [
        (dict(size=(24, 32), bgr_to_rgb=True, **COLOURS), dict(shapes=SAME)),
        (dict(size=(40, 40), bgr_to_rgb=True, pad_val=7, **COLOURS), dict(shapes=SAME)),
        (dict(size=(20, 40), bgr_to_rgb=True, **COLOURS), dict(shapes=SAME)),
        (dict(size_divisor=16, seg_pad_val=3, **COLOURS), dict(shapes=SAME)),
        (dict(size_divisor=1, **COLOURS), dict(shapes=SAME)),
        (dict(size=(40, 40), rgb_to_bgr=True, **COLOURS), dict(shapes=OTHER)),
        (dict(size_divisor=16, bgr_to_rgb=True, **COLOURS), dict(shapes=OTHER)),
        (dict(size_divisor=1, pad_val=9), dict(shapes=OTHER)),
        (dict(size=(32, 32), bgr_to_rgb=True), dict(shapes=SAME)),
        (dict(size=(32, 32), bgr_to_rgb=True, mean=[9], std=[3]), dict(shapes=SAME, channels=1)),
        (dict(size=(32, 32), bgr_to_rgb=True, mean=[9], std=[3]), dict(shapes=SAME, channels=4)),
        (dict(size=(32, 32), bgr_to_rgb=True, **COLOURS), dict(shapes=SAME, stacked=True)),
        (
            dict(size=(32, 32), bgr_to_rgb=True, test_cfg=dict(size=(48, 40)), **COLOURS),
            dict(shapes=SAME),
        ),
        (dict(size_divisor=8, test_cfg=dict(size_divisor=32)), dict(shapes=SAME, stacked=True)),
        (dict(size=(40, 40)), dict(shapes=SAME, maps=('gt_sem_seg', 'gt_edge_map'))),
        (dict(size=(40, 40)), dict(shapes=OTHER, maps=('gt_depth_map',))),
        (dict(size=(24, 32)), dict(shapes=SAME, maps=())),
    ],
)
@pytest.mark.parametrize('non_blocking', [True, False])
def test_is_what_stock_makes(
    arguments: dict, batch: dict, training: bool, non_blocking: bool
) -> None:
    data, expected = make_batch(**batch), make_batch(**batch)
    preprocessor = SparseSegDataPreProcessor(**arguments, non_blocking=non_blocking)
    if not training and batch['shapes'] is OTHER:
        with pytest.raises(AssertionError, match='should be the same'):
            SegDataPreProcessor(**arguments)(expected)
        with pytest.raises(ValueError, match='must have one shape'):
            preprocessor(data)
        return
    ours = preprocessor(data, training)
    stock = SegDataPreProcessor(**arguments)(expected, training)
    assert plain(ours) == plain(stock)
    assert ours['inputs'].is_contiguous()
    assert plain(data) == plain(make_batch(**batch))


def test_what_comes_out_is_not_the_data_set_s_own() -> None:
    data = make_batch(SAME)
    data['inputs'] = [image.float() for image in data['inputs']]
    before = copy.deepcopy(data)
    result = SparseSegDataPreProcessor(size=(24, 32))(data, training=True)
    result['inputs'].zero_()
    for sample in result['data_samples']:
        sample.gt_sem_seg.data.zero_()
    assert plain(data) == plain(before)


def test_other_things_in_the_batch_and_in_samples() -> None:
    data = make_batch(SAME)
    data['names'], data['extra'] = ('a', b'b'), dict(weights=torch.arange(3), nothing=None)
    for sample in data['data_samples']:
        sample.set_data(dict(scores=torch.arange(4), words=['x'], part=torch.Size((2, 3))))
    for training in (True, False):
        ours = SparseSegDataPreProcessor(size=(40, 40))
        stock = SegDataPreProcessor(size=(40, 40))
        assert plain(ours(data, training)) == plain(stock(copy.deepcopy(data), training))
        assert plain(ours.cast_data(data)) == plain(stock.cast_data(data))


@pytest.mark.parametrize('shapes', [SAME, OTHER])
def test_nobody_waits(shapes: list) -> None:
    arguments: dict[str, Any] = dict(size=(40, 40), bgr_to_rgb=True, **COLOURS)
    for cls, waits in ((SegDataPreProcessor, 6), (SparseSegDataPreProcessor, 0)):
        data, preprocessor = make_batch(shapes), cls(**arguments)
        with SyncCensus() as census:
            census.mark_on_host(data)
            result = preprocessor(data, training=True)
            assert not census.is_on_host(result['inputs'])
            assert not census.is_on_host(result['data_samples'][0].gt_sem_seg.data)
        assert len(census.waits) == waits


def test_each_tensor_crosses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed = []

    def cross(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        crossed.append((tuple(tensor.shape), tensor.dtype, device))
        return tensor

    monkeypatch.setattr(sparse_seg_data_preprocessor, 'to_device', cross)
    SparseSegDataPreProcessor(size=(40, 40), bgr_to_rgb=True)(make_batch(SAME), training=True)
    cpu = torch.device('cpu')
    assert sorted(crossed, key=str) == [
        *[((1, 24, 32), torch.int64, cpu)] * 2,
        *[((3, 24, 32), torch.uint8, cpu)] * 2,
    ]


def test_pads_only_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = []
    pad = torch.nn.functional.pad

    class Counting:
        @staticmethod
        def pad(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            padded.append(tuple(tensor.shape))
            return pad(tensor, *args, **kwargs)

    monkeypatch.setattr(sparse_seg_data_preprocessor, 'F', Counting)
    SparseSegDataPreProcessor(size=(24, 32))(make_batch(SAME), training=True)
    assert padded == []
    SparseSegDataPreProcessor(size=(24, 40))(make_batch(SAME), training=True)
    assert padded == [(1, 24, 32), (1, 24, 32), (2, 3, 24, 32)]


def test_batch_augments() -> None:
    def double(images: torch.Tensor, samples: list) -> tuple[torch.Tensor, list]:
        return images * 2, samples[::-1]

    results = [
        cls(size=(24, 32), batch_augments=double)(make_batch(SAME), training=True)
        for cls in (SegDataPreProcessor, SparseSegDataPreProcessor)
    ]
    assert plain(results[0]) == plain(results[1])


@pytest.mark.parametrize(
    ('arguments', 'shapes', 'training', 'says'),
    [
        (
            dict(),
            SAME,
            True,
            'data_preprocessor needs either size or size_divisor, found size=None',
        ),
        (dict(size=(9, 9), size_divisor=2), SAME, True, 'size_divisor=2'),
        (dict(test_cfg=dict(a=1)), SAME, False, 'data_preprocessor.test_cfg needs either size'),
        (dict(size=(40, 40)), OTHER, False, 'must have one shape, found .*24, 32.*30, 20'),
    ],
)
def test_mistakes(arguments: dict, shapes: list, training: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SparseSegDataPreProcessor(**arguments)(make_batch(shapes), training=training)


def test_mistakes_in_a_batch() -> None:
    with pytest.raises(ValueError, match="no 'data_samples'"):
        SparseSegDataPreProcessor(size=(9, 9))(dict(inputs=[torch.zeros(3, 4, 4)]), training=True)
    data = make_batch(SAME)
    data['inputs'][1] = data['inputs'][1][:1]
    with pytest.raises(ValueError, match='differ in their channels'):
        SparseSegDataPreProcessor(size=(40, 40))(data, training=True)


def test_is_built_by_name() -> None:
    built = MODELS.build(dict(type='SparseSegDataPreProcessor', size=(8, 8), bgr_to_rgb=True))
    assert isinstance(built, SegDataPreProcessor)
    assert built.size == (8, 8)


@pytest.mark.parametrize('training', [True, False])
def test_what_is_no_batch(training: bool) -> None:
    preprocessor = SparseSegDataPreProcessor(size=(40, 40), test_cfg=dict(size=(40, 40)))
    data = make_batch(SAME)
    data['data_samples'].pop()
    with pytest.raises(ValueError, match=r'2 images \(inputs\), but 1 data_samples'):
        preprocessor(data, training=training)
    data = make_batch(SAME)
    data['inputs'][1] = data['inputs'][1][0]
    with pytest.raises(ValueError, match=r'must have 3 dimensions, .* found \[\(24, 32\)\]'):
        preprocessor(data, training=training)


def test_maps_are_cloned_unless_they_were_copied() -> None:
    preprocessor = SparseSegDataPreProcessor(size=(24, 32)).to('meta')
    assert preprocessor.device.type == 'meta'  # as good as a device for what is copied
    there = make_batch(SAME)
    own = [sample.gt_sem_seg.data.to('meta') for sample in there['data_samples']]
    for sample, values in zip(there['data_samples'], own):
        sample.gt_sem_seg.data = values
    result = preprocessor(there, training=True)
    for sample, values in zip(result['data_samples'], own):
        assert sample.gt_sem_seg.data is not values


def test_copies_are_not_cloned(monkeypatch: pytest.MonkeyPatch) -> None:
    cloned = []
    monkeypatch.setattr(torch.Tensor, 'clone', lambda tensor: cloned.append(tensor))
    values = torch.zeros(1, 4, 4)
    preprocessor = SparseSegDataPreProcessor(size=(24, 32))
    assert preprocessor._pad_map(values, (0, 0, 0, 0), copied=True) is values
    assert cloned == []
    preprocessor._pad_map(values, (0, 0, 0, 0), copied=False)
    assert len(cloned) == 1


def pack_labels(data: dict) -> dict:
    for sample in data['data_samples']:
        for name in ('gt_sem_seg', 'gt_edge_map'):
            if name in sample:
                field = getattr(sample, name)
                field.data = field.data.to(torch.uint8)
    return data


@pytest.mark.parametrize('collate', ['pseudo_collate', 'stack_collate'])
@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('non_blocking', [True, False])
def test_packed_labels_become_what_stock_has(
    collate: str, training: bool, non_blocking: bool
) -> None:
    def make(packed: bool) -> dict:
        data = make_batch(SAME, maps=('gt_sem_seg', 'gt_edge_map'))
        data['data_samples'][0].gt_sem_seg.data[0, :4] = 255
        if packed:
            data = pack_labels(data)
        samples = [
            dict(inputs=image, data_samples=sample)
            for image, sample in zip(data['inputs'], data['data_samples'])
        ]
        return FUNCTIONS.get(collate)(samples)

    arguments: dict[str, Any] = dict(size=(40, 40), bgr_to_rgb=True, **COLOURS)
    data = make(packed=True)
    ours = SparseSegDataPreProcessor(**arguments, non_blocking=non_blocking)(data, training)
    stock = SegDataPreProcessor(**arguments)(make(packed=False), training)
    for result in (ours, stock):
        result['data_samples'] = list(result['data_samples'])
    assert plain(ours) == plain(stock)
    assert data['data_samples'][0].gt_sem_seg.data.dtype == torch.uint8


def test_what_is_stacked_crosses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed, stacked = [], []
    cross, stack = torch.Tensor.to, torch.stack

    def count(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        crossed.append((tuple(tensor.shape), tensor.dtype))
        return cross(tensor, device)

    data = pack_labels(make_batch(SAME))
    samples = [
        dict(inputs=image, data_samples=sample)
        for image, sample in zip(data['inputs'], data['data_samples'])
    ]
    data = FUNCTIONS.get('stack_collate')(samples)
    monkeypatch.setattr(sparse_seg_data_preprocessor, 'to_device', count)
    monkeypatch.setattr(torch, 'stack', lambda *args: stacked.append(args) or stack(*args))
    result = SparseSegDataPreProcessor(size=(24, 32))(data, training=True)
    assert sorted(crossed, key=str) == [
        ((2, 1, 24, 32), torch.uint8),
        ((2, 3, 24, 32), torch.uint8),
    ]
    assert stacked == []
    assert result['data_samples'][1].gt_sem_seg.data.dtype == torch.int64


def test_a_stacked_batch_is_not_handed_through() -> None:
    data = make_batch(SAME, stacked=True)
    data['inputs'] = data['inputs'].float()
    before = data['inputs'].clone()
    SparseSegDataPreProcessor(size=(24, 32))(data, training=True)['inputs'].zero_()
    assert torch.equal(data['inputs'], before)
