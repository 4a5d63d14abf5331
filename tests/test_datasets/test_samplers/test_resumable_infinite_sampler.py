"""The order is a function of (seed, epoch), and the first epoch equals that of stock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from mmengine.dataset import InfiniteSampler

from mmtempo.datasets.samplers.resumable_infinite_sampler import ResumableInfiniteSampler


def first(sampler: Any, count: int) -> list[int]:
    return list(itertools.islice(iter(sampler), count))


def of_rank(rank: int, processes: int, size: int = 10) -> ResumableInfiniteSampler:
    sampler = ResumableInfiniteSampler(range(size), seed=4)
    sampler.rank, sampler.world_size = rank, processes
    return sampler


@pytest.mark.parametrize('shuffle', [True, False])
def test_first_epoch_equals_that_of_stock(shuffle: bool) -> None:
    options: dict[str, Any] = dict(shuffle=shuffle, seed=5)
    ours = ResumableInfiniteSampler(range(10), **options)
    assert first(ours, 10) == first(InfiniteSampler(range(10), **options), 10)
    assert len(ours) == 10


def test_each_epoch_is_another_permutation() -> None:
    order = first(ResumableInfiniteSampler(range(10), seed=5), 40)
    epochs = [tuple(order[start : start + 10]) for start in range(0, 40, 10)]
    assert len(set(epochs)) == 4
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[2] == tuple(
        torch.randperm(10, generator=torch.Generator().manual_seed(5 + 2)).tolist()
    )


def test_skip_computes_one_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = first(ResumableInfiniteSampler(range(10), seed=5), 140)
    made = []
    original = torch.randperm
    monkeypatch.setattr(torch, 'randperm', lambda *a, **k: made.append(1) or original(*a, **k))
    sampler = ResumableInfiniteSampler(range(10), seed=5)
    sampler.skip(133)
    assert first(sampler, 7) == whole[133:]
    assert len(made) == 1
    assert first(sampler, 7) == whole[133:]  # each iterator starts at the skipped position
    sampler.skip(10**12)
    assert sorted(first(sampler, 10)) == list(range(10))


@pytest.mark.parametrize('processes', [2, 3, 4])
def test_processes_take_turns(processes: int) -> None:
    whole = first(of_rank(0, 1), 60)
    for rank in range(processes):
        sampler = of_rank(rank, processes)
        assert first(sampler, 12) == whole[rank::processes][:12]
        sampler.skip(5)
        assert first(sampler, 7) == whole[rank::processes][5:12]


def test_empty_dataset_and_negative_skip_are_refused() -> None:
    with pytest.raises(ValueError, match='the data set is empty'):
        ResumableInfiniteSampler([])
    with pytest.raises(ValueError, match='must not be negative, found -1'):
        ResumableInfiniteSampler(range(3)).skip(-1)
