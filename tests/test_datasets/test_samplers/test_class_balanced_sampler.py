"""Rare classes are drawn more often, in proportion to the weights of the samples."""

from __future__ import annotations

import random
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from mmengine.registry import DATA_SAMPLERS

from mmtempo.datasets.samplers import class_balanced_sampler, epoch_sampler
from mmtempo.datasets.samplers.class_balanced_sampler import ClassBalancedSampler
from tests.testing.street_labels import streets, write_ten_labels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_ten_labels(tmp_path / 'streets')


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the data sets whose labels are counted from here on."""
    sizes: list[int] = []
    count = class_balanced_sampler.count_labels

    def counted(dataset: Any, cache_file: str | None) -> np.ndarray:
        sizes.append(len(dataset))
        return count(dataset, cache_file)

    monkeypatch.setattr(class_balanced_sampler, 'count_labels', counted)
    return sizes


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the log lines of the sampler from here on."""
    logged: list[str] = []
    monkeypatch.setattr(class_balanced_sampler, 'print_log', lambda line, **_: logged.append(line))
    return logged


def sampler_of(root: Path, **kwargs: Any) -> ClassBalancedSampler:
    options = dict(cache_file=str(root / 'counts.npz'), seed=0)
    return ClassBalancedSampler(streets(root), **{**options, **kwargs})


def test_weights_are_repeat_factors(root: Path, lines: list[str]) -> None:
    sampler = DATA_SAMPLERS.build(
        dict(
            type='ClassBalancedSampler',
            dataset=streets(root),
            cache_file=str(root / 'counts.npz'),
            seed=0,
        )
    )
    assert sampler.frequencies.tolist() == [1, 0.5, 0.1]
    assert sampler.class_factors == pytest.approx([1, 1, 5**0.5])
    assert sampler.weights == pytest.approx([*[1] * 7, 5**0.5, 1, 1])
    assert lines[-1] == (
        'ClassBalancedSampler: 10 samples, weights 1 to 2.24; rare classes (share of the samples, '
        'factor): bus 10 % x2.24'
    )
    inverse = sampler_of(root, threshold=1, power=1)
    assert inverse.weights == pytest.approx([*[2] * 5, 1, 1, 10, 1, 1])
    assert sampler_of(root, min_pixels=3).frequencies.tolist() == [1, 0, 0.1]
    assert lines[-1].endswith('; in no sample: car')
    absent = sampler_of(root, min_pixels=3, threshold=1, power=1)
    assert absent.class_factors.tolist() == [1, 1, 10]
    assert absent.weights[0] == 1


def test_draws_are_proportional_to_weights(root: Path) -> None:
    sampler = sampler_of(root, threshold=1, power=1)
    drawn: Counter = Counter()
    epochs = 200
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert len(order) == len(sampler) == 10
        now = Counter(order)
        for index in range(10):
            expected = 10 * sampler.weights[index] / sampler.weights.sum()
            assert int(expected) <= now[index] <= int(expected) + 1
        drawn += now
    shares = np.array([drawn[index] for index in range(10)]) / (10 * epochs)
    assert shares == pytest.approx(sampler.weights / sampler.weights.sum(), abs=0.015)


def test_without_rare_classes_an_epoch_is_a_permutation(root: Path) -> None:
    sampler = sampler_of(root, power=0)
    assert sorted(sampler) == list(range(10))
    assert list(sampler) != sorted(sampler)
    assert len(list(sampler_of(root, num_samples=25))) == 25


def test_order_is_a_function_of_seed_and_epoch(root: Path) -> None:
    sampler = sampler_of(root, num_samples=40)
    first = list(sampler)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.skip(33)
    assert list(sampler) == second[33:]
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert (
        len({tuple(order) for order in (first, second, sampler_of(root, seed=1, num_samples=40))})
        == 3
    )


def test_short_epochs_combine_samples_freely(root: Path) -> None:
    sampler = sampler_of(root, power=0, num_samples=5)
    epochs = {frozenset(sampler.indices(epoch, 0)) for epoch in range(40)}
    assert len(epochs) > 30  # of 252 possible ones


def test_draws_of_a_sample_are_spread_over_the_epoch(root: Path) -> None:
    order = list(sampler_of(root, threshold=1, power=1, num_samples=200))
    positions = [position for position, index in enumerate(order) if index == 7]
    assert len(positions) > 80
    assert max(positions) - min(positions) > 150


def test_processes_have_equal_shares(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(sampler_of(root))
    shares = []
    for rank in range(4):
        monkeypatch.setattr(epoch_sampler, 'get_dist_info', lambda rank=rank: (rank, 4))
        sampler = sampler_of(root)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1]) == 3
    assert [index for step in zip(*shares) for index in step] == alone + alone[:2]


def _own_order(rank: int, root: Path, port: int) -> None:
    torch.distributed.init_process_group('gloo', f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
    own = root / f'own_{rank}'
    sampler = ClassBalancedSampler(
        streets(root), seed=0, cache_file=str(own / 'counts.npz'), threshold=1, power=1
    )
    (root / f'order_{rank}').write_text(' '.join(map(str, [own.exists(), *sampler])))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_spawned_processes_draw_from_the_counts_of_the_first(root: Path) -> None:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_own_order, (root, port), nprocs=2)
    orders = [(root / f'order_{rank}').read_text().split() for rank in range(2)]
    assert [order[0] for order in orders] == ['True', 'False']
    alone = list(sampler_of(root, threshold=1, power=1))
    assert [int(i) for step in zip(orders[0][1:], orders[1][1:]) for i in step] == alone


def test_first_process_broadcasts_its_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    sent: list[torch.Tensor] = []
    rank = 0

    def broadcast(data: torch.Tensor) -> None:
        if rank == 0:
            sent.append(data.clone())
        else:
            data.copy_(sent.pop(0))

    monkeypatch.setattr(class_balanced_sampler, 'is_distributed', lambda: True)
    monkeypatch.setattr(class_balanced_sampler, 'broadcast', broadcast)
    monkeypatch.setattr(epoch_sampler, 'get_dist_info', lambda: (rank, 2))
    first = sampler_of(root, threshold=1)
    rank = 1
    other = sampler_of(root, threshold=1, cache_file='/nowhere/counts.npz')
    assert read == [10]
    assert sent == []
    assert (other.weights == first.weights).all()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            dict(threshold=0),
            'threshold must be a share of the samples, above 0 and at most 1, found 0',
        ),
        (dict(threshold=1.5), 'threshold must be a share .* found 1.5'),
        (dict(power=-1), 'power must be 0 or more, found -1'),
        (dict(power=float('nan')), 'power must be 0 or more'),
        (dict(min_pixels=0), 'min_pixels must be an integer of 1 or more, found 0'),
        (dict(num_samples=0), 'num_samples must be an integer of 1 or more, found 0'),
        (dict(num_samples=2.5), 'num_samples must be an integer of 1 or more, found 2.5'),
    ],
)
def test_wrong_arguments_are_refused(root: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_of(root, **options)
