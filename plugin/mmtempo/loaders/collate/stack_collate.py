"""A collate function that stacks tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.registry import FUNCTIONS
from mmengine.structures import BaseDataElement

from .sample_batch import SampleBatch, can_stack, own, stack


@FUNCTIONS.register_module()
def stack_collate(data_batch: Sequence[Any]) -> Any:
    """Collate as mmengine's `pseudo_collate`, but stack tensors of one shape and dtype.

    Each key then crosses to the training process in one shared memory segment instead of one per
    sample, and is pinned by one copy. The result has the structure of `pseudo_collate`'s::

        dict(inputs=(3, H, W), data_samples=SegDataSample)   each sample
        dict(inputs=(B, 3, H, W), data_samples=SampleBatch)  the batch

    ========================  ==========================================================
    in the samples            in the batch
    ========================  ==========================================================
    tensors of one shape      one tensor, the samples in its first dimension
    tensors that differ       a list of tensors
    data samples              `SampleBatch`: a list whose tensor fields are stacked
    dicts, lists, tuples      the same type, with a batch of each item
    numbers, strings, arrays  a list; arrays are pickled by value, so prefer tensors
    ========================  ==========================================================

    The batch shares no memory with the dataset, which may be read-only or reused.

    Example::

        train_dataloader = dict(collate_fn=dict(type='stack_collate'), ...)

    Args:
        data_batch: Samples of the batch.

    Raises:
        ValueError: If a sample lacks a key of the first one, or lists differ in length.
    """
    return _collate(list(data_batch), '')


def _collate(values: Sequence[Any], path: str) -> Any:
    first: Any = values[0]
    if all(isinstance(value, BaseDataElement) for value in values):
        return SampleBatch.of(values)
    if isinstance(first, (str, bytes)):
        return values
    if isinstance(first, Mapping):
        _check_kind(values, Mapping, path)
        kind: Any = type(first)
        return kind({key: _collate(_column(values, key, path), _join(path, key)) for key in first})
    if isinstance(first, Sequence):
        return _transpose(values, path)
    if can_stack(values):
        return stack(values)
    return tuple(map(own, values)) if isinstance(values, tuple) else list(map(own, values))


def _transpose(values: Sequence[Any], path: str) -> Any:
    first: Any = values[0]
    _check_kind(values, Sequence, path)
    for number, value in enumerate(values):
        if len(value) != len(first):
            raise ValueError(
                f'{path or "the samples"}: sample {number} of the batch has {len(value)} items, '
                f'sample 0 has {len(first)}; pack them as tensors, or use pad_collate'
            )
    columns = [_collate(each, _join(path, item)) for item, each in enumerate(zip(*values))]
    if hasattr(first, '_fields'):  # a named tuple
        return type(first)(*columns)
    if isinstance(first, tuple):
        return columns
    try:
        return type(first)(columns)
    except TypeError:  # such as `range`
        return columns


def _column(values: Sequence[Mapping], key: Any, path: str) -> list[Any]:
    for number, value in enumerate(values):
        if key not in value:
            raise ValueError(
                f'sample {number} of the batch has no key {_join(path, key)!r}, which sample 0 '
                f'has; found {sorted(map(str, value))}'
            )
    return [value[key] for value in values]


def _check_kind(values: Sequence[Any], kind: type, path: str) -> None:
    for number, value in enumerate(values):
        if not isinstance(value, kind):
            raise ValueError(
                f'{path or "the samples"}: sample {number} of the batch is a '
                f'{type(value).__name__}, sample 0 a {type(values[0]).__name__}'
            )


def _join(path: str, key: Any) -> str:
    return f'{path}.{key}' if path else str(key)
