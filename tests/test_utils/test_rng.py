"""Draws are a function of the key and leave the global generators as they were."""

from __future__ import annotations

import random

import numpy as np
import torch

from mmtempo.utils.rng import IsolatedRNG, seed_generators, seeded


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def of_key(*key: int) -> tuple[float, float, float]:
    seed_generators(*key)
    return draw()


def test_equal_keys_give_equal_draws() -> None:
    keys = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2**31, 7, 10**7)]
    first = [of_key(*key) for key in keys]
    assert [of_key(*key) for key in keys] == first
    for drawn in zip(*first):
        assert len(set(drawn)) == len(keys)
    assert len(set(first[0])) == 3  # the generators differ from each other


def test_seeded_restores_the_generators() -> None:
    seed_generators(1)
    expected = [draw(), draw()]
    seed_generators(1)
    first = draw()
    with seeded(2):
        inside = draw()
    assert [first, draw()] == expected
    assert inside == of_key(2)


def test_isolated_generators_continue_in_the_next_block() -> None:
    seed_generators(3)
    expected = [draw() for _ in range(4)]
    seed_generators(1)
    outside = [draw() for _ in range(2)]
    seed_generators(1)
    own = IsolatedRNG(3)
    found, others = [], []
    for _ in range(2):
        with own:
            found += [draw(), draw()]
        others.append(draw())
    assert found == expected
    assert others == outside


def test_generators_of_devices_are_not_seeded() -> None:
    """The model uses them."""
    calls = []
    original = torch.manual_seed
    torch.manual_seed = lambda seed: calls.append(seed) or original(seed)  # type: ignore
    try:
        seed_generators(5)
    finally:
        torch.manual_seed = original
    assert not calls
