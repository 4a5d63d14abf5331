"""Walk over a data set and the data sets that it wraps."""

from __future__ import annotations

from typing import Any


def wrapped_by(dataset: Any) -> list[Any]:
    """Return the data sets that a wrapper such as `ConcatDataset` wraps directly."""
    # Not `hasattr`: wrappers forward the attributes that they do not have.
    state = getattr(dataset, '__dict__', {})
    parts = [*(state.get('datasets') or ()), state.get('dataset')]
    return [part for part in parts if part is not None]


def datasets_in(dataset: Any) -> list[Any]:
    """Return a data set and all that it wraps, each once, wrappers before what they wrap."""
    found: list[Any] = []
    left = [dataset]
    while left:
        part = left.pop(0)
        if not any(part is known for known in found):
            found.append(part)
            left += wrapped_by(part)
    return found


def innermost(dataset: Any) -> Any:
    """Return what wrappers wrap; of several data sets the first."""
    parts = wrapped_by(dataset)
    while parts:
        dataset = parts[0]
        parts = wrapped_by(dataset)
    return dataset
