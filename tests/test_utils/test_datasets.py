"""Data sets are found below wrappers, also below those that forward attributes."""

from __future__ import annotations

from typing import Any

from mmtempo.utils.datasets import datasets_in, innermost, wrapped_by


class Plain:
    pass


class Wrapper:
    """A wrapper that forwards attributes, as `CachedDataset` does."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__ |= parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__['dataset'], name)


def test_wrappers_are_walked_from_the_outside() -> None:
    first, second = Plain(), Plain()
    repeated = Wrapper(dataset=first)
    joined = Wrapper(datasets=[repeated, second, first])
    outer = Wrapper(dataset=joined)
    assert datasets_in(outer) == [outer, joined, repeated, second, first]
    assert wrapped_by(joined) == [repeated, second, first]
    assert innermost(outer) is first


def test_forwarded_attributes_are_not_followed() -> None:
    inner = Wrapper(dataset=Plain())
    inner_most = inner.__dict__['dataset']
    outer = Wrapper(dataset=inner)
    assert datasets_in(outer) == [outer, inner, inner_most]


def test_datasets_without_attributes_wrap_nothing() -> None:
    for dataset in ([1, 2], range(3), Wrapper(datasets=None), Wrapper(dataset=None)):
        assert datasets_in(dataset) == [dataset]
        assert innermost(dataset) is dataset


def test_cycles_end() -> None:
    one = Wrapper()
    other = Wrapper(dataset=one)
    one.__dict__['dataset'] = other
    assert datasets_in(one) == [one, other]
