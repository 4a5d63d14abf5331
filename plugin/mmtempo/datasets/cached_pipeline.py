"""Pipeline whose first transforms are replaced by a lookup in a cache."""

from __future__ import annotations

import array
import hashlib
import os
import pickle
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.structures import BaseDataElement

from mmtempo.datasets.cache.packing import SMALL
from mmtempo.datasets.cache.sample_cache import SharedSampleCache

from .cache_split import name_of


class CachedPipeline(Compose):
    """A `Compose` that caches the output of its first transforms and returns equal samples.

    ::

        file -> [first part] -> cache -> [rest, per draw] -> views of the cache are copied
                     ^            |
                     +--- miss ---+

    Size and modification time of a sample's files are read once per process, at its first draw;
    where they have changed, the sample is computed again.

    Args:
        transforms: All transforms.
        count: The number of transforms before the cache.
        cache: Cache of samples by their `sample_idx`.
        writable: Whether the other transforms get copies, which they may write into.
            Defaults to False.
    """

    def __init__(
        self,
        transforms: Sequence[Any],
        count: int,
        cache: SharedSampleCache,
        writable: bool = False,
    ) -> None:
        super().__init__(list(transforms))
        self.count, self.cache, self.writable = count, cache, writable
        self._identities = array.array('Q', bytes(8 * cache.samples))

    def __call__(self, data: dict) -> Any:
        number = data.get('sample_idx')
        if number is None:
            raise ValueError(
                'CachedDataset.dataset: get_data_info() must return sample_idx, as that of '
                f'BaseDataset does, found {", ".join(sorted(map(str, data)))}'
            )
        identity = self._identities[number] = self._identities[number] or identity_of(data)
        sample = self.cache.get(number, identity, copy=self.writable)
        if sample is None:
            sample = self._compute(data, number, identity)
        return None if sample is None else self._finish(sample)

    def _compute(self, data: Any, number: int, identity: int) -> Any:
        for transform in self.transforms[: self.count]:
            data = transform(data)
            if data is None:
                return None
        try:
            self.cache.put(number, data, identity)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise TypeError(
                f'CachedDataset: output of {name_of(self.transforms[self.count - 1])} cannot be '
                f'pickled ({error}); set until= to an earlier transform'
            ) from error
        if not self.writable:
            # Read-only as on a hit, so a transform that writes fails now and not in epoch 2.
            return _frozen(data)
        return data

    def _finish(self, sample: Any) -> Any:
        if not self.writable:
            _silence_torch()
        for transform in self.transforms[self.count :]:
            try:
                sample = transform(sample)
            except Exception as error:
                text = str(error).lower()
                if self.writable or isinstance(error, OSError):
                    raise
                if 'read-only' not in text and 'readonly' not in text:
                    raise
                raise ValueError(
                    f'CachedDataset: {name_of(transform)} writes into read-only arrays of the '
                    'cache; set writable=True, which passes copies, or set until= to a later '
                    f'transform, if {name_of(transform)} is not random: {error}'
                ) from error
            if sample is None:
                return None
        return sample if self.writable else self._own(sample)

    def _own(self, value: Any) -> Any:
        """Copy views of the cache in a sample, as the caller may write into it."""
        if isinstance(value, torch.Tensor):
            is_view = value.device.type == 'cpu' and self.cache.holds(_address(value))
            return value.clone() if is_view else value
        if isinstance(value, np.ndarray):
            return value if value.flags.writeable else value.copy()
        if isinstance(value, dict):
            for key, one in value.items():
                value[key] = self._own(one)
        elif isinstance(value, list):
            value[:] = map(self._own, value)
        elif type(value) is tuple:
            return tuple(map(self._own, value))
        elif isinstance(value, BaseDataElement):
            # By attributes, because `items()` does a slow lookup of a property for each name.
            meta = value.metainfo_keys()
            for key, one in [*vars(value).items()]:
                owned = one if key in meta else self._own(one)
                if owned is not one:
                    value.set_data({key: owned})
        return value

    def __getstate__(self) -> dict:
        # Another process reads the files' times itself.
        return self.__dict__ | {'_identities': None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state
        self._identities = array.array('Q', bytes(8 * self.cache.samples))


def identity_of(info: dict) -> int:
    """Return a hash of names, sizes and times of a sample's files; not 0."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _files(info, ''):
        try:
            status = os.stat(path)
            text = f'{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0'
        except (OSError, ValueError):  # remote, or not a file
            text = f'{path}\0'
        digest.update(text.encode(errors='surrogateescape'))
    return int.from_bytes(digest.digest(), 'big') or 1


def _files(value: Any, key: str) -> Iterator[str]:
    """Yield values of keys such as img_path or filename, and names of files, at any depth."""
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if isinstance(value, str):
        if 'path' in key or 'file' in key or os.path.isfile(value):
            yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _files(one, str(name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _files(one, key)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # without storage
        return -1


def _frozen(value: Any) -> Any:
    """Replace large arrays by read-only views; the arrays themselves may belong to a transform."""
    if isinstance(value, np.ndarray) and value.nbytes >= SMALL:
        value = value.view()
        value.setflags(write=False)
    elif type(value) is dict:
        return {key: _frozen(one) for key, one in value.items()}
    elif type(value) in (list, tuple):
        return type(value)(map(_frozen, value))
    return value


_silenced = False


def _silence_torch() -> None:
    """Trigger torch's one-time warning about read-only arrays and suppress it.

    Tensors that are views of the cache are copied at the end, so the warning does not apply.
    """
    global _silenced
    if not _silenced:
        _silenced = True
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.from_numpy(np.frombuffer(b'\0', np.uint8))
