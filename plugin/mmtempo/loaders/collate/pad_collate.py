"""A collate function that pads sequences, and merges dicts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.registry import FUNCTIONS
from mmengine.structures import BaseDataElement

from mmtempo.loaders.shared_slabs import is_plain
from mmtempo.utils.checks import is_whole

from .sample_batch import new_tensor
from .stack_collate import stack_collate

Numbers = float | Mapping[str, float]


@FUNCTIONS.register_module()
def pad_collate(
    data_batch: Sequence[Mapping],
    padding_value: Numbers = 0,
    keys: Sequence[str] | None = None,
    ndim: int | Mapping[str, int] | None = None,
    multiple_of: int = 1,
    mask_key: str | None = '{}_mask',
    lengths_key: str | None = '{}_lengths',
) -> dict:
    """Pad the sequences of dict samples to the longest of the batch, and merge the dicts.

    Samples ``dict(x=(L, C), info=dict(label=..., name=...))`` become::

        dict(
            x=...,          # (B, longest L, C)
            x_mask=...,     # bool (B, longest L), False where x is padding
            x_lengths=...,  # int64 (B,)
            info=dict(label=..., name=[...]))

    Dicts at any depth become one dict of batches, and a list of dicts within a sample becomes a
    dict of sequences, so that a loss never receives a list of dicts. A key within a dict is named
    with dots (`info.label`).

    A sequence is a tensor, an array, or a list of numbers or of equal tensors, arrays or lists;
    its first dimension is the length. (L,) becomes (B, L); both (L, C) and (1, L, C), which has
    a batch dimension already, become (B, L, C). A sample does not show whether the first of three
    dimensions is the length: set `ndim=3` if it is. Differing dtypes are promoted as in
    `torch.cat`; (0,) matches sequences of any number of dimensions.

    Tensors without dimensions, or not in `keys`, are stacked, or listed where they differ; data
    samples become a `SampleBatch`, and all other values a list, including numbers and strings.

    Example::

        train_dataloader = dict(
            collate_fn=dict(type='pad_collate', padding_value=dict(labels=-100)), ...)

    Args:
        data_batch: Samples of the batch.
        padding_value: Value to pad with; a dict sets it by key, with 0 for other keys. Defaults
            to 0.
        keys: Keys to pad; None pads all sequences. Defaults to None.
        ndim: Number of dimensions of a sample's sequence; a dict sets it by key. With 2, (L,)
            becomes (L, 1); an additional leading dimension of 1 is dropped. None accepts 1 and 2.
            Defaults to None.
        multiple_of: Divisor of the padded length. Defaults to 1.
        mask_key: Name of the mask, with `{}` for the key; None makes no mask. Defaults to
            '{}_mask'.
        lengths_key: Name of the lengths, with `{}` for the key; None makes no lengths. Defaults
            to '{}_lengths'.

    Raises:
        ValueError: If samples do not match or an argument is invalid; names the key and sample.
    """
    padding = _Padding(padding_value, keys, ndim, multiple_of, mask_key, lengths_key)
    samples = list(data_batch)
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise ValueError(
                f'pad_collate: samples must be dicts, sample {number} of the batch is a '
                f'{type(sample).__name__}; return dicts, or use stack_collate'
            )
    merged = _merge_dicts(samples, padding.named())
    padding.check_names(_paths_of(merged))
    return padding.apply(merged, '')


@dataclass(frozen=True)
class _Padding:
    """The arguments of `pad_collate`."""

    value: Numbers
    keys: Sequence[str] | None
    ndim: int | Mapping[str, int] | None
    multiple_of: int
    mask_key: str | None
    lengths_key: str | None

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ValueError(f'pad_collate: keys must be a list, found {self.keys!r}')
        if not is_whole(self.multiple_of):
            raise ValueError(
                f'pad_collate: multiple_of must be a positive integer, found {self.multiple_of!r}'
            )
        for name in ('mask_key', 'lengths_key'):
            form = getattr(self, name)
            if form is not None and '{}' not in form:
                raise ValueError(
                    f"pad_collate: {name} must contain '{{}}' for the key, found {form!r}"
                )

    def named(self) -> list[str]:
        """Return the keys that the arguments name."""
        given = (self.keys, self.value, self.ndim)
        return [key for each in given if isinstance(each, (Mapping, Sequence)) for key in each]

    def check_names(self, paths: Sequence[str]) -> None:
        """Raise an error if an argument names a key that the samples do not have."""
        missing = [key for key in self.named() if key not in paths]
        if missing:
            raise ValueError(
                f'pad_collate: keys, padding_value or ndim name {missing}, which the samples do '
                f'not have; found {list(paths)}'
            )

    def apply(self, merged: dict, above: str) -> dict:
        """Convert the lists in merged dicts to batches."""
        result: dict[Any, Any] = {}
        for key, values in merged.items():
            path = f'{above}{key}'
            if isinstance(values, dict):
                result[key] = self.apply(values, f'{path}.')
                continue
            sequences = self._sequences(values, path)
            if sequences is None:
                result[key] = _leave(values)
                continue
            result[key], mask, lengths = self._pad(sequences, path)
            for form, extra in ((self.mask_key, mask), (self.lengths_key, lengths)):
                if form is not None:
                    name = form.format(key)
                    if name in merged or name in result:
                        raise ValueError(
                            f'{path}: the samples already have a key {name!r}; set another '
                            'mask_key or lengths_key of pad_collate, or None'
                        )
                    result[name] = extra
        return result

    def _sequences(self, values: list, path: str) -> list[torch.Tensor] | None:
        """Return sequences to pad, with equal numbers of dimensions; None if not to be padded."""
        if self.keys is not None and path not in self.keys:
            return None
        found = [_as_sequence(value) for value in values]
        # An empty list does not show what its items are, so it decides nothing.
        sure = [each is not None and not _is_empty_list(v) for each, v in zip(found, values)]
        if self.keys is None and not any(sure) and not all(map(_is_empty_list, values)):
            return None
        sequences = []
        for number, (sequence, value) in enumerate(zip(found, values)):
            if sequence is None:
                raise ValueError(
                    f'{path}: sample {number} of the batch has {_describe(value)}, expected a '
                    'sequence: a tensor, an array, or a list of numbers'
                )
            sequences.append(self._normalise(sequence, path, number))
        return _match(sequences, path)

    def _normalise(self, sequence: torch.Tensor, path: str, number: int) -> torch.Tensor:
        shape = tuple(sequence.shape)
        ndim = self.ndim.get(path) if isinstance(self.ndim, Mapping) else self.ndim
        if ndim is None:
            ndim = min(len(shape), 2)
        if len(shape) == ndim or shape == (0,):
            return sequence
        if len(shape) == ndim + 1 and shape[0] == 1:
            return sequence[0]
        if len(shape) == 1 and ndim == 2:
            return sequence[:, None]
        raise ValueError(
            f'{path}: sample {number} of the batch has shape {shape}, expected {ndim} dimensions, '
            f'the length first, and at most one of size 1 before them; if the length is the first '
            f'of {len(shape)}, set ndim={{{path!r}: {len(shape)}}}; if it is not a sequence, list '
            'the sequences in keys'
        )

    def _pad(
        self, sequences: list[torch.Tensor], path: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the padded batch, its mask and its lengths."""
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in sequences))
        value = self.value.get(path, 0) if isinstance(self.value, Mapping) else self.value
        if not _fits(value, dtype):
            raise ValueError(f'{path}: padding_value {value!r} does not fit into {dtype}')
        count = len(sequences)
        longest = -(-max(map(len, sequences)) // self.multiple_of) * self.multiple_of
        padded = new_tensor((count, longest, *sequences[0].shape[1:]), dtype)
        lengths = new_tensor((count,), torch.int64)
        for number, sequence in enumerate(sequences):
            length = lengths[number] = len(sequence)
            padded[number, :length] = sequence
            padded[number, length:] = value
        mask = new_tensor((count, longest), torch.bool)
        torch.lt(torch.arange(longest), lengths[:, None], out=mask)
        return padded, mask, lengths


def _as_sequence(value: Any) -> torch.Tensor | None:
    """Return a value as a tensor of at least one dimension, or None if it is not a sequence."""
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
        # Torch warns about read-only memory, and does not support negative strides.
        value = torch.from_numpy(np.require(value, requirements=['C', 'W']))
    elif isinstance(value, (list, tuple)):
        value = _from_list(value)
    return value if is_plain(value) and value.dim() else None


def _from_list(values: Sequence[Any]) -> torch.Tensor | None:
    try:
        if any(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
            return torch.stack([torch.as_tensor(value) for value in values])
        return torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):  # strings, or items of different lengths
        return None


def _match(sequences: list[torch.Tensor], path: str) -> list[torch.Tensor]:
    """Check that only the lengths of sequences differ; give (0,) the shape of the others."""
    full = {number: each for number, each in enumerate(sequences) if each.shape != (0,)}
    if not full:
        return sequences
    first = next(iter(full))
    for number, each in full.items():
        if each.shape[1:] != full[first].shape[1:]:
            raise ValueError(
                f'{path}: sample {number} of the batch has shape {tuple(each.shape)}, sample '
                f'{first} has {tuple(full[first].shape)}; only their first dimension may differ'
            )
    return [full.get(number, full[first][:0]) for number in range(len(sequences))]


def _leave(values: list) -> Any:
    """Collate tensors and data samples by `stack_collate`; return other values unchanged."""
    kinds: tuple[type, ...] = (torch.Tensor, BaseDataElement)
    return stack_collate(values) if all(isinstance(each, kinds) for each in values) else values


def _fits(value: Any, dtype: torch.dtype) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    if dtype.is_floating_point or dtype.is_complex:
        return True
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return float(value).is_integer() and low <= int(value) <= high


def _merge_dicts(values: list, known: Sequence[str] = (), path: str = '') -> Any:
    """Merge the dicts of samples to one dict of lists; return a list of other values unchanged.

    Args:
        values: The value of each sample.
        known: Keys to create where the lists of dicts of all samples are empty. Defaults to ().
        path: Path of the values in the samples. Defaults to ''.
    """
    within = [each[len(path) + 1 :].split('.')[0] for each in known if each.startswith(f'{path}.')]
    if any(map(_is_rows, values)) or (within and all(map(_is_empty_list, values))):
        values = _turn_rows(values, within, path)
    if not any(isinstance(value, Mapping) for value in values):
        return values
    for number, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ValueError(
                f'{path}: sample {number} of the batch has {_describe(value)}, others have a dict'
            )
    columns = _columns(values, path, 'sample {} of the batch')
    return {
        key: _merge_dicts(each, known, f'{path}.{key}' if path else str(key))
        for key, each in columns
    }


def _columns(rows: Sequence[Mapping], path: str, name: str) -> list[tuple[Any, list]]:
    """Return each key with its values in all rows; `name` is a row's name in errors."""
    keys = dict.fromkeys(key for row in rows for key in row)
    for number, row in enumerate(rows):
        for key in keys:
            if key not in row:
                raise ValueError(
                    f'{name.format(number)} has no key {f"{path}.{key}" if path else key!r}, which '
                    f'others have; found {sorted(map(str, row))}'
                )
    return [(key, [row[key] for row in rows]) for key in keys]


def _is_rows(value: Any) -> bool:
    """Return whether a value is a non-empty list of dicts."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(row, Mapping) for row in value)


def _turn_rows(values: list, known: Sequence[str], path: str) -> list[dict]:
    """Turn each sample's list of dicts into a dict of lists; an empty one gets all keys."""
    turned = {}
    for number, value in enumerate(values):
        if _is_rows(value):
            where = f'dict {{}} of sample {number} of the batch'
            turned[number] = dict(_columns(value, path, where))
        elif not _is_empty_list(value):
            raise ValueError(
                f'{path}: sample {number} of the batch has {_describe(value)}, '
                'others have a list of dicts'
            )
    keys = dict.fromkeys(key for columns in turned.values() for key in columns)
    keys = keys or dict.fromkeys(known)
    return [turned.get(number, {key: [] for key in keys}) for number in range(len(values))]


def _paths_of(merged: dict, above: str = '') -> list[str]:
    paths = []
    for key, value in merged.items():
        path = f'{above}{key}'
        paths += _paths_of(value, f'{path}.') if isinstance(value, dict) else [path]
    return paths


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


def _describe(value: Any) -> str:
    """Return a description of a sample's value, for a message."""
    shape = getattr(value, 'shape', None)
    return f'a {type(value).__name__} {f"of shape {tuple(shape)}" if shape else repr(value)[:60]}'
