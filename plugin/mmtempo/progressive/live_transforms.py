"""Change the transforms of a dataset that is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcv.transforms import BaseTransform, RandomChoiceResize, RandomResize
from mmengine.dataset import Compose

# They set the attributes of the resize that they contain at each call.
COMMANDERS = (RandomResize, RandomChoiceResize)


class LiveTransforms:
    """The transforms of a dataset by type, also those of wrapped datasets and nested transforms.

    A transform is found by the name of its class and of each class it is derived from:
    'RandomCrop' finds `FastRandomCrop` as well, also within `ResizeRandomCrop`. Worker processes
    hold copies, which do not change until the workers are restarted.

    Args:
        dataset: The dataset, which may be a wrapper.
    """

    def __init__(self, dataset: Any) -> None:
        self._owners = list(_owners(dataset, set()))

    def names(self) -> list[str]:
        """Return the types of all transforms."""
        return list(dict.fromkeys(type(one).__name__ for _, _, one in self._all()))

    def find(self, name: str) -> list[Any]:
        """Return all transforms of a type."""
        return [one for _, _, one in self._all() if _is_called(one, name)]

    def set(self, name: str, attribute: str, value: Any) -> list[str]:
        """Set an attribute of all transforms of a type and return a description of each change.

        A `CachedDataset` that caches the output of a changed transform starts a new cache.
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
            owner.pipeline = owner.pipeline  # its setter starts a cache for the new transforms
        return list(dict.fromkeys(changes))

    def _all(self) -> Iterator[tuple[Any, bool, Any]]:
        """Yield the dataset of each transform, whether its output is cached, and the transform."""
        seen: set[int] = set()
        for owner in self._owners:
            pipeline = owner.pipeline
            cached = getattr(pipeline, 'count', 0) if hasattr(pipeline, 'cache') else 0
            for number, transform in enumerate(_steps(pipeline)):
                for one in _with_inner(transform, seen):
                    yield owner, number < cached, one


def _owners(dataset: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the datasets that have a pipeline; of two that share one, the outer dataset."""
    # `hasattr(dataset, ...)` is no test: wrappers forward unknown attributes to the inner dataset.
    attributes = vars(dataset)
    if 'pipeline' in attributes or hasattr(type(dataset), 'pipeline'):
        pipeline = dataset.pipeline
        if pipeline is not None and id(pipeline) not in seen:
            seen.add(id(pipeline))
            yield dataset
    for inner in (attributes.get('dataset'), *(attributes.get('datasets') or ())):
        if hasattr(inner, '__dict__'):
            yield from _owners(inner, seen)


def _steps(pipeline: Any) -> list[Any]:
    """Return the transforms of a `Compose`, or of a list as in mmseg's `MultiImageMixDataset`."""
    steps = getattr(pipeline, 'transforms', pipeline)
    return list(steps) if isinstance(steps, (list, tuple)) else [steps]


def _with_inner(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a transform and those that it contains, each once."""
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
