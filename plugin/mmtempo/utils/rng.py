"""The global generators that transforms draw from: Python's, numpy's, and torch's on the CPU."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

# Seeds: of 64, 32 and 64 bits.
WORDS = struct.Struct('<QIQ')


def seed_generators(*key: int) -> None:
    """Make what is drawn from now on a function of the key alone.

    Not with `torch.manual_seed`, which seeds the devices as well: the model draws there.
    """
    # A hash, and a single word for numpy: SeedSequence and an array of words take 0.15 ms a sample.
    digest = hashlib.blake2b(repr(key).encode(), digest_size=WORDS.size).digest()
    for_python, for_numpy, for_torch = WORDS.unpack(digest)
    random.seed(for_python)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(for_torch)


def generator_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def set_generator_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


@contextlib.contextmanager
def seeded(*key: int) -> Iterator[None]:
    """What is drawn inside is a function of the key; outside nobody notices."""
    states = generator_states()
    seed_generators(*key)
    try:
        yield
    finally:
        set_generator_states(states)


class IsolatedRNG:
    """Generators of its own, which are the global ones inside a `with`; it goes on the next time.

    Args:
        key: What they are seeded with.
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
