"""Makes a batch of samples whose sequences differ in length."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.registry import FUNCTIONS
from mmengine.structures import BaseDataElement

from .sample_batch import is_plain, new_tensor
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

    Of samples ``dict(x=(L, C), info=dict(label=..., name=...))`` becomes::

        dict(
            x=...,          # (B, longest L, C)
            x_mask=...,     # bool (B, longest L), True where x is no padding
            x_lengths=...,  # int64 (B,)
            info=dict(label=..., name=[...]))

    However deep, dicts become one dict of batches, and a list of dicts within a sample a dict of
    sequences: no loss ever gets a list of dicts. A key within a dict is named with dots
    (`info.label`).

    A sequence is a tensor, an array, or a list of numbers or of equal tensors, arrays or lists;
    its first dimension is the length. (L,) becomes (B, L); both (L, C) and (1, L, C), which
    brings a batch dimension of its own, become (B, L, C). Whether the first of three dimensions
    is the length cannot be seen from a sample: say so by `ndim=3`. Types that differ are promoted
    as `torch.cat` does; (0,) goes with sequences of any number of dimensions.

    Tensors without dimensions, or not in `keys`, are stacked, or a list where they differ; data
    samples become a `SampleBatch`, and all else a list, numbers and strings too.

    Example::

        train_dataloader = dict(
            collate_fn=dict(type='pad_collate', padding_value=dict(labels=-100)), ...)

    Args:
        data_batch: The samples.
        padding_value: What to pad with; by key in a dict, 0 for others. Defaults to 0.
        keys: Which to pad; None pads all sequences. Defaults to None.
        ndim: Dimensions of each sample's sequence; by key in a dict. With 2, (L,) becomes
            (L, 1); a leading dimension of 1 that is too many is dropped. None takes 1 and 2 as
            they come. Defaults to None.
        multiple_of: What the padded length is a multiple of. Defaults to 1.
        mask_key: Name of the mask, `{}` for the key; None makes none. Defaults to '{}_mask'.
        lengths_key: Likewise of the lengths. Defaults to '{}_lengths'.

    Raises:
        ValueError: Where samples do not go together, or an argument is wrong; it names the key
            and the sample.
    """
    padding = _Padding(padding_value, keys, ndim, multiple_of, mask_key, lengths_key)
    samples = list(data_batch)
    for place, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise ValueError(
                f'pad_collate takes samples that are dicts, sample {place} of the batch is a '
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
        if not (isinstance(self.multiple_of, int) and self.multiple_of >= 1):
            raise ValueError(
                f'pad_collate: multiple_of must be a positive integer, found {self.multiple_of!r}'
            )
        for name in ('mask_key', 'lengths_key'):
            form = getattr(self, name)
            if form is not None and '{}' not in form:
                raise ValueError(
                    f"pad_collate: {name} must have '{{}}' for the key, found {form!r}"
                )

    def named(self) -> list[str]:
        """Keys that the arguments name."""
        given = (self.keys, self.value, self.ndim)
        return [key for each in given if isinstance(each, (Mapping, Sequence)) for key in each]

    def check_names(self, paths: Sequence[str]) -> None:
        """Whether they are there."""
        missing = [key for key in self.named() if key not in paths]
        if missing:
            raise ValueError(
                f'pad_collate: keys, padding_value or ndim name {missing}, the samples have '
                f'{list(paths)}'
            )

    def apply(self, merged: dict, above: str) -> dict:
        """Batches of the lists at the leaves."""
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
                            f'{path}: the samples have a key {name!r} already; give pad_collate '
                            'another mask_key or lengths_key, or None'
                        )
                    result[name] = extra
        return result

    def _sequences(self, values: list, path: str) -> list[torch.Tensor] | None:
        """What is to be padded, of one number of dimensions; None if nothing is."""
        if self.keys is not None and path not in self.keys:
            return None
        found = [_as_sequence(value) for value in values]
        # An empty list alone does not say what it is a list of.
        sure = [each is not None and not _is_empty_list(v) for each, v in zip(found, values)]
        if self.keys is None and not any(sure) and not all(map(_is_empty_list, values)):
            return None
        sequences = []
        for place, (sequence, value) in enumerate(zip(found, values)):
            if sequence is None:
                raise ValueError(
                    f'{path}: sample {place} of the batch has {_describe(value)}, expected a '
                    'sequence: a tensor, an array, or a list of numbers'
                )
            sequences.append(self._normalise(sequence, path, place))
        return _match(sequences, path)

    def _normalise(self, sequence: torch.Tensor, path: str, place: int) -> torch.Tensor:
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
            f'{path}: sample {place} of the batch has shape {shape}, expected {ndim} dimensions, '
            f'the length first, or one of 1 before them; if the length is the first of '
            f'{len(shape)}, set ndim={{{path!r}: {len(shape)}}}; if it is no sequence, name in '
            'keys those that are'
        )

    def _pad(
        self, sequences: list[torch.Tensor], path: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The padded batch, its mask and its lengths."""
        dtype = functools.reduce(torch.promote_types, (each.dtype for each in sequences))
        value = self.value.get(path, 0) if isinstance(self.value, Mapping) else self.value
        if not _fits(value, dtype):
            raise ValueError(f'{path}: padding_value {value!r} does not fit into {dtype}')
        count = len(sequences)
        longest = -(-max(map(len, sequences)) // self.multiple_of) * self.multiple_of
        padded = new_tensor((count, longest, *sequences[0].shape[1:]), dtype)
        lengths = new_tensor((count,), torch.int64)
        for place, sequence in enumerate(sequences):
            length = lengths[place] = len(sequence)
            padded[place, :length] = sequence
            padded[place, length:] = value
        mask = new_tensor((count, longest), torch.bool)
        torch.lt(torch.arange(longest), lengths[:, None], out=mask)
        return padded, mask, lengths


def _as_sequence(value: Any) -> torch.Tensor | None:
    """A tensor of at least one dimension, or None."""
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biufc':
        # Torch takes neither read-only memory without a warning nor negative strides.
        value = torch.from_numpy(np.require(value, requirements=['C', 'W']))
    elif isinstance(value, (list, tuple)):
        value = _from_list(value)
    return value if is_plain(value) and value.dim() else None


def _from_list(values: Sequence[Any]) -> torch.Tensor | None:
    try:
        if any(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
            return torch.stack([torch.as_tensor(value) for value in values])
        return torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):  # of strings, or of different lengths
        return None


def _match(sequences: list[torch.Tensor], path: str) -> list[torch.Tensor]:
    """Whether they are alike but for the length; an empty one is made so."""
    full = {place: each for place, each in enumerate(sequences) if each.shape != (0,)}
    if not full:
        return sequences
    first = next(iter(full))
    for place, each in full.items():
        if each.shape[1:] != full[first].shape[1:]:
            raise ValueError(
                f'{path}: sample {place} of the batch has shape {tuple(each.shape)}, sample '
                f'{first} has {tuple(full[first].shape)}; only their first dimension may differ'
            )
    return [full.get(place, full[first][:0]) for place in range(len(sequences))]


def _leave(values: list) -> Any:
    """Tensors and data samples as `stack_collate` has them, all else as it is."""
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
    """Samples' dicts as one dict of lists; what is no dict stays the list of the samples'.

    Args:
        values: One a sample.
        known: Keys that are there also where the lists of dicts of all samples are empty.
            Defaults to ().
        path: Where in the samples they are. Defaults to ''.
    """
    within = [each[len(path) + 1 :].split('.')[0] for each in known if each.startswith(f'{path}.')]
    if any(map(_is_rows, values)) or (within and all(map(_is_empty_list, values))):
        values = _turn_rows(values, within, path)
    if not any(isinstance(value, Mapping) for value in values):
        return values
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ValueError(
                f'{path}: sample {place} of the batch has {_describe(value)}, others have a dict'
            )
    columns = _columns(values, path, 'sample {} of the batch')
    return {
        key: _merge_dicts(each, known, f'{path}.{key}' if path else str(key))
        for key, each in columns
    }


def _columns(rows: Sequence[Mapping], path: str, who: str) -> list[tuple[Any, list]]:
    """What each has of a key, for every key."""
    keys = dict.fromkeys(key for row in rows for key in row)
    for place, row in enumerate(rows):
        for key in keys:
            if key not in row:
                raise ValueError(
                    f'{who.format(place)} has no key {f"{path}.{key}" if path else key!r}, which '
                    f'others have; found {sorted(map(str, row))}'
                )
    return [(key, [row[key] for row in rows]) for key in keys]


def _is_rows(value: Any) -> bool:
    """Whether it is a list of dicts."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(row, Mapping) for row in value)


def _turn_rows(values: list, known: Sequence[str], path: str) -> list[dict]:
    """Each sample's list of dicts as a dict of lists; an empty one has no keys to show."""
    turned = {}
    for place, value in enumerate(values):
        if _is_rows(value):
            where = f'dict {{}} of sample {place} of the batch'
            turned[place] = dict(_columns(value, path, where))
        elif not _is_empty_list(value):
            raise ValueError(
                f'{path}: sample {place} of the batch has {_describe(value)}, '
                'others have a list of dicts'
            )
    keys = dict.fromkeys(key for columns in turned.values() for key in columns)
    keys = keys or dict.fromkeys(known)
    return [turned.get(place, {key: [] for key in keys}) for place in range(len(values))]


def _paths_of(merged: dict, above: str = '') -> list[str]:
    paths = []
    for key, value in merged.items():
        path = f'{above}{key}'
        paths += _paths_of(value, f'{path}.') if isinstance(value, dict) else [path]
    return paths


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


def _describe(value: Any) -> str:
    """What a sample has, for a message."""
    shape = getattr(value, 'shape', None)
    return f'a {type(value).__name__} {f"of shape {tuple(shape)}" if shape else repr(value)[:60]}'
