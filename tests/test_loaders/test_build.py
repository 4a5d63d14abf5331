"""Unchanged stock dataloader configs give the batches of stock, or an error message."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.registry import DATA_SAMPLERS, FUNCTIONS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, IterableDataset

from mmtempo.loaders import (
    PrefetchDataLoader,
    ResumableInfiniteSampler,
    build,
    build_prefetch_dataloader,
)
from mmtempo.loaders.build import TIMEOUT
from mmtempo.system.machine import LOCAL_SIZES
from tests.testing.common import ROOT
from tests.testing.limits import low_nofile
from tests.testing.samples import Noisy


class Plain(Noisy):
    """Samples without randomness."""

    metainfo = dict(classes=('a', 'b'))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(inputs=torch.full((2,), float(index)), number=index)


class Stream(IterableDataset):
    """A dataset that cannot be indexed."""

    def __iter__(self) -> Any:
        return iter(())


@DATA_SAMPLERS.register_module()
class OddsThenEvens(BatchSampler):
    """A custom batch sampler."""

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
def test_batches_equal_those_of_stock(changes: dict) -> None:
    stock = Runner.build_dataloader(cfg(**changes), seed=3)
    ours = build_prefetch_dataloader(cfg(**changes), seed=3)
    expected, found = list(stock), list(ours)
    ours.close()
    assert len(found) == len(expected) == len(ours) == len(stock)
    for batch, other in zip(found, expected):
        assert type(batch) is type(other)
        assert repr(batch) == repr(other)
    assert ours.num_workers == stock.num_workers
    if 'batch_sampler' not in changes:  # stock's loader does not report these for one
        assert (ours.batch_size, ours.drop_last) == (stock.batch_size, stock.drop_last)
    assert ours.dataset.metainfo == Plain.metainfo
    assert type(ours.sampler) is type(stock.sampler) or changes.get('batch_sampler')
    assert len(ours.dataset) == len(stock.dataset)


def test_real_samples_equal_those_of_stock(tiny_cfg: Any) -> None:
    """Images, labels and meta information, with two datasets and two collate functions."""
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


def test_missing_keys_are_chosen(caplog: pytest.LogCaptureFixture) -> None:
    given = cfg()
    del given['num_workers']
    ours = build_prefetch_dataloader(given, seed=3, name='train_dataloader')
    assert ours.num_workers >= 1
    assert ours.persistent_workers
    assert ours.prefetch_factor in (1, 2)
    assert not ours.pin_memory
    assert ours.timeout == TIMEOUT
    assert 'num_workers' not in given  # the user's config is not modified
    assert build_prefetch_dataloader(cfg(timeout=7), seed=3).timeout == 7


def test_infinite_sampler_is_replaced_by_the_resumable_one() -> None:
    for kind in ('InfiniteSampler', 'mmengine.InfiniteSampler'):
        ours = build_prefetch_dataloader(cfg(sampler=dict(type=kind)), seed=3, endless=True)
        assert isinstance(ours.sampler, ResumableInfiniteSampler)
        assert ours.sampler.seed == 3


@pytest.mark.parametrize(
    ('tasks', 'devices', 'expected'), [(None, 4, 4), (None, 0, 8), ('2', 4, 2), ('0', 4, 1)]
)
def test_cpus_are_shared_by_the_processes_of_this_node(
    tasks: str | None, devices: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's number of processes, else one per accelerator, of CUDA or another type."""
    for name in LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    if tasks is not None:
        monkeypatch.setenv(LOCAL_SIZES[0], tasks)
    monkeypatch.setattr(build, 'get_dist_info', lambda: (0, 8))
    monkeypatch.setattr(
        torch,
        'accelerator',
        SimpleNamespace(device_count=lambda: devices, is_available=lambda: False),
    )
    plan = build_prefetch_dataloader(cfg(num_workers='auto'), seed=3).plan
    on_node = f', {expected} processes on this node ->'
    assert (on_node in plan.reasons[0]) == (expected > 1)
    assert ('processes on this node' in plan.reasons[0]) == (expected > 1)


def test_seed_determines_batches_and_is_shared() -> None:
    one, other = (build_prefetch_dataloader(cfg(), seed=5) for _ in range(2))
    assert repr(list(one)) == repr(list(other))
    assert one.seed == one.sampler.seed == 5
    # With a different seed per process, the order needs a seed that all processes share.
    drawn = build_prefetch_dataloader(cfg(), seed=5, diff_rank_seed=True)
    assert drawn.seed == drawn.sampler.seed != 5


MISTAKES: list[tuple[dict, type[Exception], str]] = [
    (dict(numworkers=2), ValueError, r'data\.numworkers is unknown; did you mean num_workers\?'),
    (
        dict(dataset=None, sampler=None),
        TypeError,
        r'data\.dataset must be indexable .* found a NoneType',
    ),
    (
        dict(dataset=Stream()),
        TypeError,
        r'data\.dataset must be indexable .* found a Stream; use one',
    ),
    (dict(batch_size=0), ValueError, r'data\.batch_size must be a positive integer, found 0'),
    (
        dict(num_workers='many'),
        ValueError,
        r"data\.num_workers must be 'auto' or an integer .*'many'",
    ),
    (dict(collate_fn=dict(type=3)), TypeError, r'data\.collate_fn\.type must be a function'),
]


@pytest.mark.parametrize(('changes', 'error', 'message'), MISTAKES)
def test_invalid_config_is_an_error_that_names_the_key(
    changes: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_prefetch_dataloader(cfg(**changes), seed=3, name='data')


def test_missing_required_key_is_an_error() -> None:
    given = cfg()
    del given['sampler']
    with pytest.raises(ValueError, match=r'data\.sampler is missing'):
        build_prefetch_dataloader(given, name='data')


def test_sampler_object_is_used_unchanged() -> None:
    sampler = torch.utils.data.SequentialSampler(Plain())
    ours = build_prefetch_dataloader(cfg(sampler=sampler), seed=3)
    assert isinstance(ours, PrefetchDataLoader)
    assert ours.sampler is sampler


FEW_FILES = """
import sys, warnings
warnings.simplefilter('ignore')
from tests.testing.loaders import build_loader, take_batches
loader = build_loader(num_workers=3)
print(take_batches(loader, 12) == take_batches(build_loader(), 12), loader.num_workers)
loader.close()
"""


@pytest.mark.parametrize(
    ('hard', 'workers', 'line'),
    [
        (4096, 3, 'open files: soft limit 48 -> 4096'),
        (80, 1, 'open files: at most 80 (hard limit)'),
    ],
)
def test_few_open_files_raise_the_limit_or_lower_workers(
    hard: int, workers: int, line: str
) -> None:
    env = dict(os.environ, OMP_NUM_THREADS='1')
    done = low_nofile(
        [sys.executable, '-c', FEW_FILES], soft=48, hard=hard, cwd=ROOT, env=env, timeout=60
    )
    text = done.stdout + done.stderr
    assert f'True {workers}' in text, text[-3000:]
    assert line in text
