"""Padded sequences with masks and lengths, and merged dicts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import FUNCTIONS
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from mmtempo.loaders.collate.pad_collate import pad_collate
from mmtempo.loaders.collate.sample_batch import SampleBatch
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample


def of(*values: Any, **options: Any) -> dict:
    """Collate samples that have one key, x."""
    return pad_collate([dict(x=value) for value in values], **options)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def test_sequences_are_padded_to_the_longest() -> None:
    long, short = torch.rand(5, 3), torch.rand(2, 3)
    batch = of(long, short, padding_value=-1)
    assert list(batch) == ['x', 'x_mask', 'x_lengths']
    assert torch.equal(batch['x'][0], long)
    assert torch.equal(batch['x'][1, :2], short)
    assert batch['x'][1, 2:].unique().tolist() == [-1]
    assert batch['x_mask'].dtype == torch.bool
    assert batch['x_mask'].tolist() == [[True] * 5, [True] * 2 + [False] * 3]
    assert batch['x_lengths'].dtype == torch.int64
    assert batch['x_lengths'].tolist() == [5, 2]


@pytest.mark.parametrize('values', [[torch.tensor([1, 2, 3]), torch.tensor([4])], [[1, 2, 3], [4]]])
def test_padding_equals_pad_sequence_of_torch(values: list) -> None:
    expected = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(value) for value in values], True)
    assert torch.equal(of(*values)['x'], expected)


@pytest.mark.parametrize(
    ('values', 'options', 'shape', 'lengths'),
    [
        ([ones(4), ones(2)], {}, (2, 4), [4, 2]),
        ([ones(4), ones(2)], dict(ndim=2), (2, 4, 1), [4, 2]),
        ([ones(4, 3), ones(2, 3)], {}, (2, 4, 3), [4, 2]),
        ([ones(1, 4, 3), ones(1, 2, 3)], {}, (2, 4, 3), [4, 2]),
        ([ones(1, 4, 3), ones(2, 3)], {}, (2, 4, 3), [4, 2]),
        ([ones(1, 4, 3)], {}, (1, 4, 3), [4]),
        ([ones(4, 2, 3), ones(1, 2, 3)], dict(ndim=3), (2, 4, 2, 3), [4, 1]),
        ([ones(1, 4, 2, 3), ones(2, 2, 3)], dict(ndim=dict(x=3)), (2, 4, 2, 3), [4, 2]),
        ([ones(1, 4), ones(2)], dict(ndim=1), (2, 4), [4, 2]),
        ([ones(1, 4), ones(2)], dict(ndim=ConfigDict(x=1)), (2, 4), [4, 2]),
        ([ones(3, 4), ones(0)], {}, (2, 3, 4), [3, 0]),
        ([ones(3, 4, 5), ones(0)], dict(ndim=3), (2, 3, 4, 5), [3, 0]),
        ([[], [[1, 2]]], {}, (2, 1, 2), [0, 1]),
        ([[], []], {}, (2, 0), [0, 0]),
        ([ones(0, 4), ones(0, 4)], {}, (2, 0, 4), [0, 0]),
        ([ones(5), ones(2)], dict(multiple_of=4), (2, 8), [5, 2]),
        ([ones(8), ones(2)], dict(multiple_of=4), (2, 8), [8, 2]),
        ([[ones(2), np.ones(2)], [ones(2)]], {}, (2, 2, 2), [2, 1]),
        ([((1, 2), (3, 4)), ((5, 6),)], {}, (2, 2, 2), [2, 1]),
    ],
)
def test_shape_of_padded_batch(values: list, options: dict, shape: tuple, lengths: list) -> None:
    batch = of(*values, **options)
    assert batch['x'].shape == shape
    assert batch['x_mask'].shape == shape[:2]
    assert batch['x_lengths'].tolist() == lengths
    assert batch['x_mask'].sum(1).tolist() == lengths


@pytest.mark.parametrize(
    ('values', 'dtype'),
    [
        ([ones(2, dtype=torch.uint8), ones(1, dtype=torch.uint8)], torch.uint8),
        ([ones(2, dtype=torch.float16), ones(1)], torch.float32),
        ([[1, 2], [0.5]], torch.float32),
        ([[1, 2], []], torch.int64),
        ([[True], [False, True]], torch.bool),
        ([np.zeros(2, np.int16), np.zeros(1, np.int16)], torch.int16),
        ([np.zeros(2), [1.5]], torch.float64),
    ],
)
def test_dtypes_are_promoted(values: list, dtype: torch.dtype) -> None:
    assert of(*values)['x'].dtype == dtype


def test_read_only_and_reversed_arrays_are_copied_without_warning() -> None:
    frozen = np.arange(4)
    frozen.flags.writeable = False
    torch.set_warn_always(True)  # else torch warns once, possibly in another test
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        try:
            batch = of(frozen, np.arange(3)[::-1])
        finally:
            torch.set_warn_always(False)
    assert batch['x'].tolist() == [[0, 1, 2, 3], [2, 1, 0, 0]]


def test_batch_shares_no_memory_with_the_dataset() -> None:
    own = [torch.ones(3), np.ones(3, np.float32)]
    batch = of(*own)
    batch['x'].zero_()
    assert own[0].tolist() == own[1].tolist() == [1, 1, 1]


def test_padding_value_is_set_by_key() -> None:
    samples = [dict(a=[1, 2], b=dict(c=[1.5, 2])), dict(a=[3], b=dict(c=[4.0]))]
    batch = pad_collate(samples, padding_value={'b.c': float('nan')})
    assert batch['a'].tolist() == [[1, 2], [3, 0]]
    assert batch['b']['c'].isnan().tolist() == [[False, False], [False, True]]


def test_dicts_are_merged() -> None:
    """A loss reads `stored_info['new_dense_anno']` of a batch."""
    samples = [
        dict(
            features=torch.rand(4 + index, 8),
            stored_info=dict(new_dense_anno=torch.rand(1, 4 + index, 3), video=f'{index}'),
            label=index,
            score=torch.tensor(0.5),
            image=torch.zeros(2, dtype=torch.uint8),
        )
        for index in range(3)
    ]
    batch = pad_collate(samples)
    info = batch['stored_info']
    assert sorted(info) == [
        'new_dense_anno',
        'new_dense_anno_lengths',
        'new_dense_anno_mask',
        'video',
    ]
    assert info['new_dense_anno'].shape == (3, 6, 3)
    assert torch.cat([batch['features'], info['new_dense_anno']], dim=2).shape == (3, 6, 11)
    assert info['video'] == ['0', '1', '2']
    assert batch['label'] == [0, 1, 2]
    assert batch['score'].tolist() == [0.5] * 3


def dicts_in_lists(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(dicts_in_lists, value.values()))
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, dict) or dicts_in_lists(each) for each in value)
    return False


@pytest.mark.parametrize('order', [[0, 1, 2], [2, 1, 0], [1, 2]])
def test_lists_of_dicts_become_dicts_of_sequences(order: list[int]) -> None:
    samples = [
        dict(
            annos=[
                dict(segment=[0.5, 1], label=3, text='a'),
                dict(segment=[2, 3], label=4, text='b'),
            ]
        ),
        dict(annos=[]),
        dict(annos=(dict(segment=torch.tensor([7, 8]), label=5, text='c'),)),
    ]
    batch = pad_collate([samples[index] for index in order], padding_value={'annos.label': -1})
    assert not dicts_in_lists(batch)
    annos = batch['annos']
    lengths = [[2, 0, 1][index] for index in order]
    assert annos['label_lengths'].tolist() == annos['segment_lengths'].tolist() == lengths
    assert annos['segment'].shape == (len(order), max(lengths), 2)
    assert annos['text'] == [[['a', 'b'], [], ['c']][index] for index in order]
    expected = [[3, 4], [-1, -1], [5, -1]]
    assert annos['label'].tolist() == [expected[index][: max(lengths)] for index in order]


def test_named_keys_exist_without_annotations() -> None:
    batch = of([], [], keys=['x.label', 'x.box.corners'])
    assert batch['x']['label'].shape == (2, 0)
    assert batch['x']['box']['corners_lengths'].tolist() == [0, 0]


def test_only_given_keys_are_padded() -> None:
    samples = [
        dict(x=ones(2 + i), image=ones(3, 4, 4), words=['a'] * i, ragged=ones(i), ids=[1] * i)
        for i in range(2)
    ]
    batch = pad_collate(samples, keys=['x'])
    assert sorted(batch) == ['ids', 'image', 'ragged', 'words', 'x', 'x_lengths', 'x_mask']
    assert batch['image'].shape == (2, 3, 4, 4)
    assert batch['words'] == [[], ['a']]
    assert batch['ids'] == [[], [1]]
    assert [len(tensor) for tensor in batch['ragged']] == [0, 1]


def test_masks_and_lengths_are_renamed_or_omitted() -> None:
    assert list(of([1], [2, 3], mask_key=None)) == ['x', 'x_lengths']
    assert list(of([1], [2, 3], mask_key=None, lengths_key=None)) == ['x']
    assert list(of([1], [2, 3], mask_key='is_{}', lengths_key='n_{}')) == ['x', 'is_x', 'n_x']


def test_data_samples_become_a_sample_batch() -> None:
    def sample(length: int) -> dict:
        label = torch.zeros(2, 2, dtype=torch.int16)
        return dict(x=ones(length), data_samples=BEVDataSample(gt_bev=label))

    batch = pad_collate([sample(2), sample(3)])
    assert type(batch['data_samples']) is SampleBatch
    assert batch['data_samples'].stacked['gt_bev'].shape == (2, 2, 2)


@pytest.mark.parametrize(
    ('samples', 'options', 'message'),
    [
        ([dict(x=[1]), dict(y=[1])], {}, r"sample 0 of the batch has no key 'y', .*\['x'\]"),
        ([dict(x=[1], y=1), dict(x=[1])], {}, "sample 1 of the batch has no key 'y'"),
        ([dict(i=dict(x=1)), dict(i={})], {}, "sample 1 of the batch has no key 'i.x'"),
        (
            [dict(i=dict(x=1)), dict(i=7)],
            {},
            'i: sample 1 of the batch has a int 7, others .* dict',
        ),
        (
            [dict(i=[dict(a=1), dict(b=1)])],
            {},
            "dict 0 of sample 0 of the batch has no key 'i.b'",
        ),
        (
            [dict(i=[dict(a=1)]), dict(i=3)],
            {},
            'i: sample 1 .* has a int 3, others .* list of dicts',
        ),
        (
            [3],
            {},
            'pad_collate: samples must be dicts, sample 0 of the batch is a int; return dicts',
        ),
        (
            [dict(x=ones(2)), dict(x=ones(2, 3))],
            {},
            r'x: sample 1 .* shape \(2, 3\), sample 0 has \(2,\)',
        ),
        (
            [dict(x=ones(2, 3)), dict(x=ones(2, 4))],
            {},
            r'x: sample 1 .* shape \(2, 4\), sample 0 has \(2, 3\)',
        ),
        (
            [dict(x=ones(1, 4, 3)), dict(x=ones(3, 4, 4))],
            {},
            r"x: sample 1 .*\(3, 4, 4\), expected 2 dimensions.*ndim=\{'x': 3\}",
        ),
        (
            [dict(x=ones(2)), dict(x='a')],
            {},
            "x: sample 1 of the batch has a str 'a', expected a seq",
        ),
        ([dict(x=ones(1, 1, 4, 3))], {}, r'x: sample 0 .*\(1, 1, 4, 3\), expected 2 dim'),
        ([dict(x=ones(2)), dict(x=None)], {}, 'x: sample 1 of the batch has a NoneType None'),
        ([dict(x=ones(2)), dict(x=ones())], {}, 'x: sample 1 of the batch has a Tensor'),
        ([dict(x=[1]), dict(x=['a'])], {}, r"x: sample 1 of the batch has a list \['a'\]"),
        (
            [dict(x=[1], x_mask=1)],
            {},
            "x: the samples already have a key 'x_mask'; set another mask_key",
        ),
        (
            [dict(x=[1])],
            dict(keys=['z']),
            r"name \['z'\], which the samples do not have; found \['x'\]",
        ),
        ([dict(x=[1])], dict(padding_value=dict(z=1)), r"name \['z'\]"),
        ([dict(x=[1])], dict(keys='x'), "keys must be a list, found 'x'"),
        ([dict(x=[1])], dict(multiple_of=0), 'multiple_of must be a positive integer, found 0'),
        (
            [dict(x=[1])],
            dict(mask_key='mask'),
            "mask_key must contain '{}' for the key, found 'mask'",
        ),
        ([dict(x=[1])], dict(padding_value=0.5), 'padding_value 0.5 does not fit into torch.int64'),
        ([dict(x=[1])], dict(padding_value=float('nan')), 'padding_value nan does not fit'),
        (
            [dict(x=ones(1, dtype=torch.uint8))],
            dict(padding_value=-1),
            'x: .* -1 does not fit .*uint8',
        ),
        ([dict(x=[True])], dict(padding_value=2), '2 does not fit into torch.bool'),
        ([dict(x=[1.0])], dict(padding_value=dict(x='a')), "'a' does not fit into torch.float32"),
    ],
)
def test_invalid_samples_and_arguments_are_errors(
    samples: list, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pad_collate(samples, **options)


class Sequences(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict:
        return dict(x=torch.full((index, 2), index), info=dict(name=str(index), part=[1] * index))


def test_stock_loader_finds_pad_collate_by_name() -> None:
    assert FUNCTIONS.get('pad_collate') is pad_collate
    cfg = dict(type='pad_collate', padding_value=dict(x=-1), keys=['x'], multiple_of=2)
    loader = Runner.build_dataloader(
        dict(
            dataset=Sequences(),
            batch_size=4,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=cfg,
        )
    )
    (batch,) = loader
    assert batch['x'].shape == (4, 4, 2)
    assert batch['x'][0].unique().tolist() == [-1]


def collate_and_check(samples: list) -> tuple[dict, bool]:
    """Collate in a worker; also return whether the tensors are in shared memory already."""
    batch = pad_collate(samples)
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    return batch, len(tensors) == 3 and all(tensor.is_shared() for tensor in tensors)


def test_worker_pads_in_shared_memory() -> None:
    loader = DataLoader(Sequences(), batch_size=4, num_workers=1, collate_fn=collate_and_check)
    ((batch, shared),) = loader
    assert shared
    expected = pad_collate([Sequences()[index] for index in range(4)])
    assert torch.equal(batch['x'], expected['x'])
    assert torch.equal(batch['info']['part_mask'], expected['info']['part_mask'])
    assert batch['info']['name'] == ['0', '1', '2', '3']
