"""A pipeline whose first part is looked up instead of run."""

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
            return _frozen(data)
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
            # By its attributes: `items()` looks for a property behind each name.
            meta = value.metainfo_keys()
            for key, one in [*vars(value).items()]:
                owned = one if key in meta else self._own(one)
                if owned is not one:
                    value.set_data({key: owned})
        return value

    def __getstate__(self) -> dict:
        # Another process looks at the files for itself.
        return self.__dict__ | {'_identities': None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ |= state
        self._identities = array.array('Q', bytes(8 * self.cache.samples))


class Description:
    """Hashes of values that are the same in another process, whatever the values hold.

    Attributes:
        unknown: Types of what could not be described; two of them may look the same and not be.
    """

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        # With the values, so that no other is given the same place in memory.
        self._seen: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
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
                + (value.__kwdefaults__, [*map(_inside, value.__closure__ or ())])
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
            except Exception:  # whatever an extension raises
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
    """What the output of transforms depends on, their code included.

    Returns:
        A text, and the types of what could not be described: if there are any, the text does not
        tell these transforms from others.
    """
    description = Description()
    return ' '.join([description.of(transform) for transform in transforms]), description.unknown


def _name_of_type(cls: type) -> str:
    return f'{cls.__module__}.{cls.__qualname__}'


def _pickles_itself(cls: type) -> bool:
    """Whether what it holds is elsewhere than in its __dict__, or not all of that matters."""
    names = ('__reduce__', '__reduce_ex__', '__getstate__', '__getnewargs__', '__getnewargs_ex__')
    slots = any(vars(one).get('__slots__') for one in cls.__mro__)
    return slots or any(getattr(cls, key, None) is not getattr(object, key, None) for key in names)


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


@functools.cache
def _code_of(cls: type) -> str:
    """Of a class that is no installed package's: those have versions."""
    file = getattr(sys.modules.get(cls.__module__), '__file__', None) or ''
    own = cls.__module__ == '__main__' or (file and not file.startswith(_STANDARD))
    if not own or 'site-packages' in file or 'dist-packages' in file:
        return ''
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # typed in, say
        codes = {
            name: (one.__code__.co_code, one.__code__.co_names, repr(one.__code__.co_consts))
            for name, one in sorted(vars(cls).items())
            if isinstance(one, types.FunctionType)
        }
        return _ADDRESS.sub('', repr(codes))


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
    """Values of all keys such as img_path or filename, and names of files, however deep."""
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
    except RuntimeError:  # one without memory of its own
        return -1


def _frozen(value: Any) -> Any:
    """The same with read-only views of large arrays: the arrays may be a transform's own."""
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
    """Have torch give its warning of a read-only array, which it gives once, where nobody sees it.

    Tensors that are still views at the end are copied, so there is nothing to be warned of.
    """
    global _silenced
    if not _silenced:
        _silenced = True
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.from_numpy(np.frombuffer(b'\0', np.uint8))
