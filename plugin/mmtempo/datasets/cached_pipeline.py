"""Pipeline whose first transforms are replaced by a lookup in a cache."""

from __future__ import annotations

import array
import copyreg
import functools
import hashlib
import inspect
import os
import pickle
import re
import sys
import types
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

_ADDRESS = re.compile(r' at 0x[0-9a-fA-F]+')
_STANDARD = os.path.dirname(os.__file__)
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes)


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
        identity = self._identities[number] or self._read_identity(number, data)
        sample = self.cache.get(number, identity, copy=self.writable)
        if sample is None:
            sample = self._compute(data, number, identity)
        return None if sample is None else self._finish(sample)

    def _read_identity(self, number: int, data: dict) -> int:
        self._identities[number] = identity = identity_of(data)
        return identity

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


class Description:
    """Hashes of arbitrary values that are equal in all processes.

    Attributes:
        unknown: Types of values that could not be described; different values of such a type may
            have equal hashes.
    """

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        # Holds the values, so that no `id` is reused.
        self._seen: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """Return the hash of a value, or its `repr` where that is enough."""
        if value is None or type(value) in _PLAIN:
            return f'{type(value).__name__} {value!r}'
        if id(value) not in self._seen:
            self._seen[id(value)] = value, f'cycle {len(self._seen)}'
            text = f'{_name_of_type(type(value))} {self._content(value)}'
            digest = hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=16)
            self._seen[id(value)] = value, digest.hexdigest()
        return self._seen[id(value)][1]

    def _content(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            content = hashlib.blake2b(flat.data).hexdigest()
            return value.dtype.str, value.dtype.descr, value.shape, content
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            content = hashlib.blake2b(bits.numpy().data).hexdigest()
            return str(value.dtype), tuple(value.shape), content
        if isinstance(value, types.FunctionType):
            return self._all(
                (value.__module__, value.__qualname__, value.__code__, value.__defaults__)
                + (value.__kwdefaults__, [*map(_content_of_cell, value.__closure__ or ())])
            )
        if isinstance(value, types.MethodType):
            return self._all((value.__func__, value.__self__))
        if isinstance(value, types.CodeType):
            return self._all((value.co_code, value.co_names, value.co_consts))
        if isinstance(value, types.ModuleType):
            return value.__name__, getattr(value, '__version__', '')
        if isinstance(value, type):
            return _name_of_type(value), [_code_of(cls) for cls in value.__mro__]
        return self._content_of_object(value)

    def _content_of_object(self, value: Any) -> Any:
        items: Any = next((one.__repr__(value) for one in _PLAIN if isinstance(value, one)), None)
        state = getattr(value, '__dict__', None)
        if isinstance(value, dict):
            items = [(self.of(key), self.of(one)) for key, one in value.items()]
        elif isinstance(value, (set, frozenset)):
            items = sorted(map(self.of, value))
        elif isinstance(value, (list, tuple)):
            items = self._all(value)
        elif items is None and (state is None or _pickles_itself(type(value))):
            try:
                reduce = copyreg.dispatch_table.get(type(value))
                reduced = reduce(value) if reduce else value.__reduce_ex__(4)
            except Exception:  # extension types may raise any
                self.unknown.add(type(value).__qualname__)
                return 'unknown'
            if isinstance(reduced, str):
                return reduced
            state = None
            items = self._all([*reduced[:3], *(list(part or ()) for part in reduced[3:5])])
        options = sorted((key, self.of(one)) for key, one in (state or {}).items())
        return items, options, [_code_of(cls) for cls in type(value).__mro__]

    def _all(self, values: Any) -> list[str]:
        return [self.of(value) for value in values]


def fingerprint_of(transforms: Sequence[Any]) -> tuple[str, set[str]]:
    """Return a text that identifies transforms, including their code and attributes.

    Returns:
        The text, and the types of values that could not be described. If there are any, different
        transforms may have equal texts.
    """
    description = Description()
    return ' '.join([description.of(transform) for transform in transforms]), description.unknown


def _name_of_type(cls: type) -> str:
    return f'{cls.__module__}.{cls.__qualname__}'


def _pickles_itself(cls: type) -> bool:
    """Return whether the state of a class differs from the `__dict__` of its instances."""
    names = ('__reduce__', '__reduce_ex__', '__getstate__', '__getnewargs__', '__getnewargs_ex__')
    slots = any(vars(one).get('__slots__') for one in cls.__mro__)
    return slots or any(getattr(cls, key, None) is not getattr(object, key, None) for key in names)


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


@functools.cache
def _code_of(cls: type) -> str:
    """Return the source of a class; '' for installed packages, which have versions."""
    file = getattr(sys.modules.get(cls.__module__), '__file__', None) or ''
    own = cls.__module__ == '__main__' or (file and not file.startswith(_STANDARD))
    if not own or 'site-packages' in file or 'dist-packages' in file:
        return ''
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # entered interactively, for example
        codes = {
            name: (one.__code__.co_code, one.__code__.co_names, repr(one.__code__.co_consts))
            for name, one in sorted(vars(cls).items())
            if isinstance(one, types.FunctionType)
        }
        return _ADDRESS.sub('', repr(codes))


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
