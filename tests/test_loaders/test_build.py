"""Stock dataloader dicts, unchanged: the same batches as stock's, or a message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, IterableDataset

from mmtempo.loaders import PrefetchDataLoader, ResumableInfiniteSampler, build_prefetch_dataloader
from mmtempo.loaders.build import TIMEOUT
from tests.testing.samples import Noisy


class Plain(Noisy):
    """The same each time."""

    metainfo = dict(classes=('a', 'b'))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(inputs=torch.full((2,), float(index)), number=index)


class Stream(IterableDataset):
    """No samples by number."""

    def __iter__(self) -> Any:
        return iter(())


@DATA_SAMPLERS.register_module()
class OddsThenEvens(BatchSampler):
    """A batch sampler of somebody's own."""

    def __iter__(self) -> Any:
        indices = list(self.sampler)
        for half in (indices[1::2], indices[::2]):
            for start in range(0, len(half), self.batch_size):
                yield half[start : start + self.batch_size]


@FUNCTIONS.register_module()
def numbers_only(data_batch: list, times: int = 1) -> list:
    return [times * sample['number'] for sample in data_batch]


def cfg(**changes: Any) -> dict[str, Any]:
    whole = dict(
        dataset=Plain(),
        sampler=dict(type='DefaultSampler', shuffle=True),
        batch_size=4,
        num_workers=0,
    )
    return {**whole, **changes}


@pytest.mark.parametrize(
    'changes',
    [
        {},
        dict(drop_last=True),
        dict(sampler=dict(type='DefaultSampler', shuffle=False), num_workers=1),
        dict(batch_sampler=dict(type='OddsThenEvens', drop_last=False)),
        dict(num_batch_per_epoch=2),
        dict(sampler=None),
        dict(collate_fn=dict(type='numbers_only', times=2)),
        dict(collate_fn=numbers_only, persistent_workers=True, num_workers=1),
        dict(collate_fn=dict(type='default_collate')),
    ],
    ids=lambda changes: ','.join(changes) or 'plain',
)
def test_gives_what_stock_gives(changes: dict) -> None:
    stock = Runner.build_dataloader(cfg(**changes), seed=3)
    ours = build_prefetch_dataloader(cfg(**changes), seed=3)
    expected, found = list(stock), list(ours)
    ours.close()
    assert len(found) == len(expected) == len(ours) == len(stock)
    for batch, other in zip(found, expected):
        assert type(batch) is type(other)
        assert repr(batch) == repr(other)
    assert ours.num_workers == stock.num_workers
    if 'batch_sampler' not in changes:  # of which stock's loader says nothing
        assert (ours.batch_size, ours.drop_last) == (stock.batch_size, stock.drop_last)
    assert ours.dataset.metainfo == Plain.metainfo
    assert type(ours.sampler) is type(stock.sampler) or changes.get('batch_sampler')
    assert len(ours.dataset) == len(stock.dataset)


def test_real_samples_equal_those_of_stock(tiny_cfg: Any) -> None:
    """Two data sets, two collates: pictures, labels, and all that a sample knows of itself."""
    whole = tiny_cfg
    stock = Runner.build_dataloader(whole.val_dataloader, seed=3)
    ours = build_prefetch_dataloader(whole.val_dataloader, seed=3)
    count = 0
    for expected, found in zip(stock, ours):
        for number, sample in enumerate(expected['data_samples']):
            other = found['data_samples'][number]
            assert torch.equal(expected['inputs'][number], found['inputs'][number])
            assert torch.equal(sample.gt_bev, other.gt_bev)
            assert sorted(sample.metainfo_keys()) == sorted(other.metainfo_keys())
            assert sample.token == other.token
            count += 1
    assert count == 4
    assert ours.dataset.metainfo == stock.dataset.metainfo


def test_what_is_missing_is_filled_in(caplog: pytest.LogCaptureFixture) -> None:
    given = cfg()
    del given['num_workers']
    ours = build_prefetch_dataloader(given, seed=3, name='train_dataloader')
    assert ours.num_workers >= 1
    assert ours.persistent_workers
    assert ours.prefetch_factor in (1, 2)
    assert not ours.pin_memory
    assert ours.timeout == TIMEOUT
    assert 'num_workers' not in given  # the config is the user's
    assert build_prefetch_dataloader(cfg(timeout=7), seed=3).timeout == 7


def test_an_infinite_sampler_becomes_resumable() -> None:
    for kind in ('InfiniteSampler', 'mmengine.InfiniteSampler'):
        ours = build_prefetch_dataloader(cfg(sampler=dict(type=kind)), seed=3, endless=True)
        assert isinstance(ours.sampler, ResumableInfiniteSampler)
        assert ours.sampler.seed == 3


def test_seeds() -> None:
    one, other = (build_prefetch_dataloader(cfg(), seed=5) for _ in range(2))
    assert repr(list(one)) == repr(list(other))
    assert one.seed == one.sampler.seed == 5
    # Where each process has a seed of its own, the order needs one that all share.
    drawn = build_prefetch_dataloader(cfg(), seed=5, diff_rank_seed=True)
    assert drawn.seed == drawn.sampler.seed != 5


MISTAKES: list[tuple[dict, type[Exception], str]] = [
    (dict(numworkers=2), ValueError, r'data\.numworkers is unknown; did you mean num_workers\?'),
    (dict(dataset=None, sampler=None), TypeError, r'data\.dataset is a NoneType'),
    (dict(dataset=Stream()), TypeError, r'data\.dataset is a Stream, which has no samples by num'),
    (dict(batch_size=0), ValueError, r'data\.batch_size must be a positive integer, found 0'),
    (dict(num_workers='many'), ValueError, r'data\.num_workers'),
    (dict(collate_fn=dict(type=3)), TypeError, r'data\.collate_fn\.type must be a function'),
]


@pytest.mark.parametrize(('changes', 'error', 'message'), MISTAKES)
def test_mistakes(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_prefetch_dataloader(cfg(**changes), seed=3, name='data')


def test_a_missing_key() -> None:
    given = cfg()
    del given['sampler']
    with pytest.raises(ValueError, match=r'data\.sampler is missing'):
        build_prefetch_dataloader(given, name='data')


def test_what_is_built_already_is_taken() -> None:
    sampler = torch.utils.data.SequentialSampler(Plain())
    ours = build_prefetch_dataloader(cfg(sampler=sampler), seed=3)
    assert isinstance(ours, PrefetchDataLoader)
    assert ours.sampler is sampler
