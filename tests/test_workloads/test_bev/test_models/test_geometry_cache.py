"""The cache computes each placement once, and never exceeds its size."""

from __future__ import annotations

import copy
import pickle

import torch

from mmtempo.workloads.bev.models.frustum import Placement
from mmtempo.workloads.bev.models.geometry_cache import GeometryCache
from tests.testing.operations import Operations


class Maker:
    """Function that makes placements whose cell is the key of the sample."""

    def __init__(self, keys: list[str], hint: bool = False) -> None:
        self.keys = keys
        self.hint = hint
        self.calls: list[list[str]] = []

    def __call__(self, indices: list[int]) -> Placement:
        self.calls.append([self.keys[index] for index in indices])
        value = torch.tensor([[ord(self.keys[index])] for index in indices])
        return Placement(value > 0, value, value + 1, None, value.float() if self.hint else None)


def fetch(cache: GeometryCache, keys: str, **kwargs: bool) -> tuple[str, list[list[str]]]:
    """Return the keys of the fetched placements, and those of each call of the maker."""
    maker = Maker(list(keys), **kwargs)
    placement = cache.fetch(list(keys), maker)
    return ''.join(chr(int(cell)) for cell in placement.cells), maker.calls


def test_missing_placements_are_made_once_and_in_one_call() -> None:
    cache = GeometryCache(10)
    assert fetch(cache, 'abc') == ('abc', [['a', 'b', 'c']])
    assert fetch(cache, 'cab') == ('cab', [])
    assert fetch(cache, 'xayx') == ('xayx', [['x', 'y']])
    assert fetch(cache, 'zzz') == ('zzz', [['z']])
    assert (cache.misses, cache.hits) == (6, 7)


def test_least_recently_used_placements_are_evicted_beyond_the_size() -> None:
    cache = GeometryCache(3)
    fetch(cache, 'abc')
    fetch(cache, 'a')
    fetch(cache, 'd')
    assert len(cache) == 3
    assert fetch(cache, 'acd')[1] == []
    assert fetch(cache, 'b')[1] == [['b']]
    for start in range(0, 26, 5):
        fetch(cache, 'abcdefghijklmnopqrstuvwxyz'[start : start + 5])
        assert len(cache) == 3


def test_batch_may_be_larger_than_the_cache() -> None:
    cache = GeometryCache(2)
    assert fetch(cache, 'abcd') == ('abcd', [['a', 'b', 'c', 'd']])
    assert fetch(cache, 'dcba') == ('dcba', [['b', 'a']])
    assert len(cache) == 2
    empty = GeometryCache(0)
    assert fetch(empty, 'aab') == ('aab', [['a', 'b']])
    assert len(empty) == 0


def test_optional_fields_may_be_none() -> None:
    cache = GeometryCache(4)
    for keys in ('ab', 'bc'):
        maker = Maker(list(keys), hint=True)
        placement = cache.fetch(list(keys), maker)
        assert placement.offsets is None
        assert placement.hint.flatten().tolist() == [float(ord(key)) for key in keys]


def test_reused_placements_own_their_memory() -> None:
    cache = GeometryCache(4)
    fetch(cache, 'abcd')
    fetch(cache, 'bd')
    for key, (placement, _) in cache._kept.items():
        cells = placement.cells
        owned = cells.untyped_storage().nbytes() == cells.numel() * cells.element_size()
        assert owned == (key in 'bd')


def test_placements_are_copied_at_their_first_reuse_only() -> None:
    cache = GeometryCache(4)
    keys = 'abcdefghijklmnop'
    with Operations() as operations:
        for start in range(0, 16, 4):
            fetch(cache, keys[start : start + 4])
    assert not {'clone', 'copy_', 'stack', 'cat'} & set(operations.names)
    with Operations() as operations:
        fetch(cache, 'mn')
        fetch(cache, 'nm')
    assert operations.names.count('clone') == 6  # three fields of two samples


def test_copies_and_pickles_are_empty() -> None:
    cache = GeometryCache(4)
    fetch(cache, 'abcd')
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(other), other.size) == (0, 4)
