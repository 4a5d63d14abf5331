"""Seed, epoch and start position determine the order of every sampler with epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mmtempo.datasets.samplers import epoch_sampler
from mmtempo.datasets.samplers.epoch_sampler import EpochSampler
from mmtempo.datasets.samplers.pk_sampler import PKSampler
from tests.testing.galleries import gallery


class Tens(EpochSampler):
    """Ten indices, of which each epoch has others."""

    def __len__(self) -> int:
        return 10

    def indices(self, epoch: int, start: int) -> Iterator[int]:
        yield from range(10 * epoch + start, 10 * epoch + 10)


def test_processes_share_a_random_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_sampler, 'sync_random_seed', lambda: 11)
    dataset = gallery([6] * 10)
    assert list(PKSampler(dataset, 4, 2)) == list(PKSampler(dataset, 4, 2, seed=11))


def test_skipped_samples_are_missing_from_the_next_epoch_only() -> None:
    sampler = Tens(range(3), seed=0)
    sampler.set_epoch(4)
    sampler.skip(7)
    assert list(sampler) == [47, 48, 49]
    assert list(sampler) == [*range(40, 50)]


def test_skip_beyond_an_epoch_shifts_later_epochs() -> None:
    dataset = gallery([4] * 8)
    sampler = PKSampler(dataset, identities=3, instances=2, seed=0)
    assert len(sampler) == 30
    sampler.skip(2 * 30 + 12)
    expected = PKSampler(dataset, identities=3, instances=2, seed=0)
    expected.set_epoch(2)
    assert list(sampler) == list(expected)[12:]
    sampler.set_epoch(1)
    expected.set_epoch(3)
    assert list(sampler) == list(expected)


@pytest.mark.parametrize('seed', [-1, True, 1.0, '1'])
def test_wrong_seeds_are_refused(seed: Any) -> None:
    message = f'Tens.seed must be None or an integer of 0 or more, found {seed!r}'
    with pytest.raises(ValueError, match=message):
        Tens(range(3), seed=seed)


def test_empty_dataset_and_negative_skip_are_refused() -> None:
    with pytest.raises(ValueError, match='PKSampler: the data set is empty'):
        PKSampler([], 2, 2, seed=0)
    with pytest.raises(ValueError, match='num_samples must not be negative, found -1'):
        PKSampler(gallery([4] * 4), 2, 2, seed=0).skip(-1)
