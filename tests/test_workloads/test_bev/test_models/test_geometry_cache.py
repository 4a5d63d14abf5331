"""Kept, found again, and let go: whatever a run brings, the cache stays as small as it was set."""

from __future__ import annotations

import copy
import pickle

import torch

from mmtempo.workloads.bev.models.frustum import Placement
from mmtempo.workloads.bev.models.geometry_cache import GeometryCache
from tests.test_workloads.test_bev.test_models.test_splat import Operations


class Maker:
    """Makes placements that tell which sample they are of."""

    def __init__(self, keys: list[str], hint: bool = False) -> None:
        self.keys = keys
        self.hint = hint
        self.asked: list[list[str]] = []

    def __call__(self, numbers: list[int]) -> Placement:
        self.asked.append([self.keys[number] for number in numbers])
        value = torch.tensor([[ord(self.keys[number])] for number in numbers])
        return Placement(value > 0, value, value + 1, None, value.float() if self.hint else None)


def fetch(cache: GeometryCache, keys: str, **kwargs: bool) -> tuple[str, list[list[str]]]:
    """What came back, as text, and what had to be made."""
    maker = Maker(list(keys), **kwargs)
    placement = cache.fetch(list(keys), maker)
    return ''.join(chr(int(cell)) for cell in placement.cells), maker.asked


def test_makes_what_is_missing_at_once_and_each_only_once() -> None:
    cache = GeometryCache(10)
    assert fetch(cache, 'abc') == ('abc', [['a', 'b', 'c']])
    assert fetch(cache, 'cab') == ('cab', [])
    assert fetch(cache, 'xayx') == ('xayx', [['x', 'y']])
    assert fetch(cache, 'zzz') == ('zzz', [['z']])
    assert (cache.misses, cache.hits) == (6, 7)


def test_never_keeps_more_than_its_size_and_drops_the_longest_unused() -> None:
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


def test_a_batch_larger_than_the_cache_is_served() -> None:
    cache = GeometryCache(2)
    assert fetch(cache, 'abcd') == ('abcd', [['a', 'b', 'c', 'd']])
    assert fetch(cache, 'dcba') == ('dcba', [['b', 'a']])
    assert len(cache) == 2
    nothing = GeometryCache(0)
    assert fetch(nothing, 'aab') == ('aab', [['a', 'b']])
    assert len(nothing) == 0


def test_optional_fields() -> None:
    cache = GeometryCache(4)
    for keys in ('ab', 'bc'):
        maker = Maker(list(keys), hint=True)
        placement = cache.fetch(list(keys), maker)
        assert placement.offsets is None
        assert placement.hint.flatten().tolist() == [float(ord(key)) for key in keys]


def test_what_is_used_again_lets_go_of_its_batch() -> None:
    cache = GeometryCache(4)
    fetch(cache, 'abcd')
    fetch(cache, 'bd')
    for key, (placement, _) in cache._kept.items():
        cells = placement.cells
        alone = cells.untyped_storage().nbytes() == cells.numel() * cells.element_size()
        assert alone == (key in 'bd')


def test_what_is_never_used_again_is_never_copied() -> None:
    cache = GeometryCache(4)
    keys = 'abcdefghijklmnop'
    with Operations() as operations:
        for start in range(0, 16, 4):
            fetch(cache, keys[start : start + 4])
    assert not {'clone', 'copy_', 'stack', 'cat'} & set(operations.names)
    with Operations() as operations:
        fetch(cache, 'mn')
        fetch(cache, 'nm')
    assert operations.names.count('clone') == 6  # three fields of two samples, once


def test_copies_start_empty() -> None:
    cache = GeometryCache(4)
    fetch(cache, 'abcd')
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(other), other.size) == (0, 4)
