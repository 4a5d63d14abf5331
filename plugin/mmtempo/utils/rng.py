"""Seed and restore the global generators that transforms use: Python, numpy, torch on the CPU."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

# Seeds of Python, numpy and torch: 64, 32 and 64 bits.
WORDS = struct.Struct('<QIQ')


def seed_generators(*key: int) -> None:
    """Seed the generators with a key of integers.

    `torch.manual_seed` would seed the devices as well, whose generators the model uses.
    """
    # SeedSequence, or an array of words for numpy, would take 0.15 ms a sample.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=WORDS.size).digest()
    for_python, for_numpy, for_torch = WORDS.unpack(digest)
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(for_torch)


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators."""
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Restore states that `generator_states` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


@contextlib.contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed the generators for this block, and restore their states after it."""
    states = generator_states()
    seed_generators(*key)
    try:
        yield
    finally:
        set_generator_states(states)


class IsolatedRNG:
    """Separate generator states that replace the global ones inside a `with` block.

    Each block continues where the last one ended.

    Args:
        key: The seed, as integers.
    """

    def __init__(self, *key: int) -> None:
        with seeded(*key):
            self._states = generator_states()

    def __enter__(self) -> None:
        self._others = generator_states()
        set_generator_states(self._states)

    def __exit__(self, *error: Any) -> None:
        self._states = generator_states()
        set_generator_states(self._others)
