"""A pipeline whose first part is looked up instead of run."""

from __future__ import annotations

import array
import hashlib
import os
import pickle
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.structures import BaseDataElement

from ..core.sample_cache import SharedSampleCache
from ..core.sample_packing import SMALL
from .cache_point import name_of

_ADDRESS = re.compile(r' at 0x[0-9a-fA-F]+')


class CachedPipeline(Compose):
    """Takes what mmengine's `Compose` takes, and gives the same.

    ::

        file -> [first part] -> cache -> [rest, per draw] -> what is still the cache's is copied
                     ^            |
                     +--- miss ---+

    A file is looked at once per process, when its sample is first drawn: one that has another
    size or time of change then is made anew.

    Args:
        transforms: All of them.
        count: How many come before the cache.
        cache: Where samples are kept, by their `sample_idx`.
        writable: Whether the rest gets copies, which it may write into. Defaults to False.
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
        self._gives_views = not writable and cache.policy == 'keep'
        self._identities = array.array('Q', bytes(8 * cache.samples))

    def __call__(self, data: dict) -> Any:
        number = data.get('sample_idx')
        if number is None:
            raise ValueError(
                'CachedDataset: get_data_info() of its dataset gives no sample_idx; one that '
                "overrides it must return what BaseDataset's gives"
            )
        identity = self._identities[number] or self._look_at_files(number, data)
        sample = self.cache.get(number, identity, copy=self.writable)
        if sample is None:
            sample = self._make(data, number, identity)
        return None if sample is None else self._finish(sample)

    def _look_at_files(self, number: int, data: dict) -> int:
        self._identities[number] = identity = identity_of(data)
        return identity

    def _make(self, data: Any, number: int, identity: int) -> Any:
        for transform in self.transforms[: self.count]:
            data = transform(data)
            if data is None:
                return None
        try:
            self.cache.put(number, data, identity)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise TypeError(
                f'CachedDataset: what {name_of(self.transforms[self.count - 1])} returns cannot be '
                f'pickled ({error}); set until= to an earlier transform'
            ) from error
        if self._gives_views:
            # As it will be the next time: who writes into it is told now, not in epoch 2.
            _freeze(data)
        return data

    def _finish(self, sample: Any) -> Any:
        if self._gives_views:
            _silence_torch()
        for transform in self.transforms[self.count :]:
            try:
                sample = transform(sample)
            except Exception as error:
                text = str(error).lower()
                if not self._gives_views or isinstance(error, OSError):
                    raise
                if 'read-only' not in text and 'readonly' not in text:
                    raise
                raise ValueError(
                    f'{name_of(transform)} writes into arrays of the sample cache, which are '
                    'read-only; set CachedDataset(writable=True), which gives it copies, or until= '
                    f'to a transform behind it, if it is not random: {error}'
                ) from error
            if sample is None:
                return None
        return self._own(sample) if self._gives_views else sample

    def _own(self, value: Any) -> Any:
        """Copy what is still the cache's: who gets the sample may write into it."""
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
            for key, one in value.items():
                owned = self._own(one)
                if owned is not one:
                    value.set_data({key: owned})
        return value

    def __getstate__(self) -> dict:
        # Another process looks at the files for itself.
        return self.__dict__ | {'_identities': None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state
        self._identities = array.array('Q', bytes(8 * self.cache.samples))


def fingerprint_of(transforms: Sequence[Any]) -> str:
    """What the output of transforms depends on, as far as they say."""
    texts = []
    for transform in transforms:
        options = sorted((key, repr(value)) for key, value in vars(transform).items())
        texts.append(f'{type(transform).__module__}.{type(transform).__qualname__} {options}')
        texts.append(repr(transform))
    # Where an object lies differs from process to process.
    return _ADDRESS.sub('', '\n'.join(texts))


def identity_of(info: dict) -> int:
    """Of the files that a sample is made from: names, sizes, times; not 0."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _files(info, ''):
        try:
            status = os.stat(path)
            text = f'{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0'
        except (OSError, ValueError):  # not of this machine, or no file
            text = f'{path}\0'
        digest.update(text.encode(errors='surrogateescape'))
    return int.from_bytes(digest.digest(), 'big') or 1


def _files(value: Any, key: str) -> Iterator[str]:
    """Values of all keys such as img_path or filename, however deep."""
    if isinstance(value, str):
        if 'path' in key or 'file' in key:
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
    except RuntimeError:  # one without memory of its own
        return -1


def _freeze(value: Any) -> None:
    if isinstance(value, np.ndarray):
        if value.nbytes >= SMALL:
            value.setflags(write=False)
    elif isinstance(value, dict):
        for one in value.values():
            _freeze(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _freeze(one)


_silenced = False


def _silence_torch() -> None:
    """Have torch give its warning of a read-only array, which it gives once, where nobody sees it.

    Tensors that are still views at the end are copied, so there is nothing to be warned of.
    """
    global _silenced
    if not _silenced:
        _silenced = True
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.from_numpy(np.frombuffer(b'\0', np.uint8))
