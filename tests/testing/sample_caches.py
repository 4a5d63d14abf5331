"""Sample caches with recognizable samples, and damage to their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from mmtempo.datasets.cache.packing import pack
from mmtempo.datasets.cache.sample_cache import SharedSampleCache

SIDE = 64  # pixels; an image of 4096 bytes, which takes slightly more in a cache


def sample(number: int, side: int = SIDE) -> dict:
    image = np.full((side, side), number, np.uint8)
    return dict(img=image, name=f'sample {number}', matrix=np.eye(3) * number, none=None)


def is_right(found: Any, number: int) -> bool:
    expected = sample(number)
    return found is not None and all(
        np.array_equal(found[key], expected[key]) for key in ('img', 'matrix', 'name')
    )


def size_of(number: int = 1) -> int:
    """Return the bytes that a sample takes in a cache."""
    return sum(map(len, pack(sample(number))))


def put_some(cache: SharedSampleCache, numbers: range) -> int:
    for number in numbers:
        cache.put(number, sample(number))
    return os.getpid()


def right_ones(cache: SharedSampleCache, numbers: range) -> list[int]:
    """Return the numbers whose samples the cache returns unchanged."""
    return [number for number in numbers if is_right(cache.get(number), number)]


class Caches:
    """A factory of caches with one key.

    Args:
        folder: Folder of the caches; None for memory.
        key: Key of the caches.

    Attributes:
        messages: Messages of all caches.
    """

    def __init__(self, folder: str | None, key: str) -> None:
        self.folder, self.key = folder, key
        self.messages: list[str] = []

    def __call__(self, samples: int = 8, budget: int | str = '1MB', **options: Any) -> Any:
        options = dict(folder=self.folder, key=self.key, report=self.messages.append) | options
        return SharedSampleCache(samples, budget, **options)

    @property
    def path(self) -> Path:
        return next(Path(str(self.folder)).glob('*.cache'))


def damage(path: Path, offset: int, value: bytes | None = None) -> None:
    """Overwrite bytes of a file; without a value, flip bits of one byte."""
    with open(path, 'r+b') as file:
        file.seek(offset)
        other = bytes([file.read(1)[0] ^ 0xA5]) if value is None else value
        file.seek(offset)
        file.write(other)
