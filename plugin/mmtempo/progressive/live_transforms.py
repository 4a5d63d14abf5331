"""The transforms of a data set that is built already, to be changed where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcv.transforms import BaseTransform, RandomChoiceResize, RandomResize
from mmengine.dataset import Compose

# They tell the resize inside what to do, each time.
COMMANDERS = (RandomResize, RandomChoiceResize)


class LiveTransforms:
    """Finds transforms by their type, below wrappers of the data set and inside of others.

    A type is found by its name and by that of a class it is derived from: 'RandomCrop' is
    `FastRandomCrop` as well, also within `ResizeRandomCrop`. Workers have copies, which know
    nothing of a change until they are started anew.

    Args:
        dataset: The data set.
    """

    def __init__(self, dataset: Any) -> None:
        self._owners = list(_owners(dataset, set()))

    def names(self) -> list[str]:
        """Types of all transforms."""
        return list(dict.fromkeys(type(one).__name__ for _, _, one in self._all()))

    def find(self, name: str) -> list[Any]:
        """All of a type."""
        return [one for _, _, one in self._all() if _is_called(one, name)]

    def set(self, name: str, attribute: str, value: Any) -> list[str]:
        """Set an attribute of all transforms of a type; what has changed by that.

        Where `CachedDataset` keeps what a changed transform has made, it begins anew.
        """
        changes: list[str] = []
        stale: list[Any] = []
        for owner, is_cached, one in self._all():
            if not _is_called(one, name):
                continue
            before = getattr(one, attribute)
            after = tuple(value) if isinstance(before, tuple) and type(value) is list else value
            if type(before) is type(after) and before == after:
                continue
            setattr(one, attribute, after)
            changes.append(f'{type(one).__name__}.{attribute} {before} -> {after}')
            if is_cached and not any(owner is known for known in stale):
                stale.append(owner)
        for owner in stale:
            owner.pipeline = owner.pipeline  # it looks at what its transforms are now
        return list(dict.fromkeys(changes))

    def _all(self) -> Iterator[tuple[Any, bool, Any]]:
        """Each with the data set that it is of, and whether what it makes is kept."""
        seen: set[int] = set()
        for owner in self._owners:
            pipeline = owner.pipeline
            kept = getattr(pipeline, 'count', 0) if hasattr(pipeline, 'cache') else 0
            for place, transform in enumerate(_steps(pipeline)):
                for one in _with_inner(transform, seen):
                    yield owner, place < kept, one


def _owners(dataset: Any, seen: set[int]) -> Iterator[Any]:
    """Data sets that have a pipeline; of two with the same one, the outer."""
    # Not by hasattr: wrappers hand on what they are asked for.
    known = vars(dataset)
    if 'pipeline' in known or hasattr(type(dataset), 'pipeline'):
        pipeline = dataset.pipeline
        if pipeline is not None and id(pipeline) not in seen:
            seen.add(id(pipeline))
            yield dataset
    for inner in (known.get('dataset'), *(known.get('datasets') or ())):
        if hasattr(inner, '__dict__'):
            yield from _owners(inner, seen)


def _steps(pipeline: Any) -> list[Any]:
    """In mmseg's `MultiImageMixDataset` it is a list."""
    steps = getattr(pipeline, 'transforms', pipeline)
    return list(steps) if isinstance(steps, (list, tuple)) else [steps]


def _with_inner(value: Any, seen: set[int]) -> Iterator[Any]:
    """A transform and those that it holds, each once."""
    if isinstance(value, (list, tuple)):
        for one in value:
            if isinstance(one, (BaseTransform, Compose, list, tuple)):
                yield from _with_inner(one, seen)
        return
    if id(value) in seen or not hasattr(value, '__dict__'):
        return
    seen.add(id(value))
    yield value
    if not isinstance(value, COMMANDERS):
        for one in vars(value).values():
            if isinstance(one, (BaseTransform, Compose, list, tuple)):
                yield from _with_inner(one, seen)


def _is_called(transform: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(transform).__mro__)
