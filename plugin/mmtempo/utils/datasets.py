"""Walk over a data set and the data sets that it wraps."""

from __future__ import annotations

from typing import Any


def wrapped_by(dataset: Any) -> list[Any]:
    """Return the data sets that a wrapper such as `ConcatDataset` wraps directly."""
    # Not `hasattr`: wrappers forward the attributes that they do not have.
    state = getattr(dataset, '__dict__', {})
    parts = [*(state.get('datasets') or ()), state.get('dataset')]
    return [part for part in parts if part is not None]


def innermost(dataset: Any) -> Any:
    """Return what wrappers wrap; of several data sets the first."""
    parts = wrapped_by(dataset)
    while parts:
        dataset = parts[0]
        parts = wrapped_by(dataset)
    return dataset
