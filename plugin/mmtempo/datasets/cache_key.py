"""Key of a sample cache: all that cached samples depend on, except the files of each sample.

::

    data set      its class, and the data infos of all samples
    transforms    classes, attributes, and the source files of their classes
    packages      versions

Code that a transform calls in other files has no part in it, unless it is that of a package below.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import pickle
import sys
import types
from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset

from mmtempo.utils.tensors import is_plain

# Another version of these packages may decode or resize differently.
VERSIONS = ('mmcv', 'mmseg', 'mmengine', 'mmtempo', 'numpy', 'cv2', 'PIL', 'pyspng', 'zlib_ng')
# Opcodes of sets; a pickle with a set contains one of these bytes.
SETS = (0x8F, 0x91)
_CONSTANTS: tuple[Any, ...] = (bool, int, float, complex, str, bytes, type(None), type(...))


def key_of_data(dataset: BaseDataset) -> str:
    """Return the part of the key that the transforms do not determine."""
    digest = hashlib.blake2b(digest_size=16)
    own_infos = type(dataset).get_data_info is not BaseDataset.get_data_info
    if dataset.serialize_data and not own_infos and not np.isin(dataset.data_bytes, SETS).any():
        digest.update(dataset.data_bytes)
        digest.update(dataset.data_address)
    else:
        for number in range(len(dataset)):
            info = dataset.get_data_info(number)
            pickled = pickle.dumps(info, protocol=4)
            if _has_set(info):  # whose order differs between processes
                pickled = Description().of(info).encode()
            digest.update(pickled)
    versions = [f'{name} {getattr(sys.modules.get(name), "__version__", "")}' for name in VERSIONS]
    return '\n'.join([f'{_name_of(type(dataset))} {digest.hexdigest()}', *versions])


def key_of_transform(transform: Any) -> tuple[str, set[str]]:
    """Return a text that identifies a transform by class, source files and attributes.

    Returns:
        The text, and the names of what could not be described. If there are any, different
        transforms may have equal texts.
    """
    description = Description()
    return description.of(transform), description.unknown


class Description:
    """Hashes of arbitrary values that are equal in all processes.

    Attributes:
        unknown: Names of types, classes and functions that could not be described; different ones
            may have equal hashes.
    """

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        # Holds the values, so that no `id` is reused.
        self._seen: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """Return the hash of a value, or its `repr` where that is enough."""
        if type(value) in _CONSTANTS:
            return f'{type(value).__name__} {value!r}'
        if id(value) not in self._seen:
            self._seen[id(value)] = value, f'cycle {len(self._seen)}'
            text = f'{_name_of(type(value))} {self._content(value)}'
            digest = hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=16)
            self._seen[id(value)] = value, digest.hexdigest()
        return self._seen[id(value)][1]

    def _content(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return [(self.of(key), self.of(one)) for key, one in value.items()]
        if kind in (list, tuple):
            return [self.of(one) for one in value]
        if kind in (set, frozenset):
            return sorted(self.of(one) for one in value)
        if kind is np.ndarray and not value.dtype.hasobject:
            content = hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()
            return value.dtype.descr, value.shape, content
        if is_plain(value):
            flat = value.contiguous().reshape(-1).view(torch.uint8)
            return str(value.dtype), tuple(value.shape), self.of(flat.numpy())
        if isinstance(value, type):
            return [self._definition(cls) for cls in value.__mro__]
        if kind is types.FunctionType:
            return self._definition(value)
        return self._reduced(value)

    def _definition(self, value: Any) -> str:
        """Return the name of a class or function and a hash of its file, which has its code."""
        module = value.__module__
        file = getattr(sys.modules.get(module), '__file__', None)
        source = _hash_of_source(file) if file else module in sys.builtin_module_names or None
        # Neither lambdas nor what a function defines is identified by its name.
        if source is None or '<' in value.__qualname__:
            self.unknown.add(value.__qualname__)
        return f'{_name_of(value)} {source}'

    def _reduced(self, value: Any) -> Any:
        """Return what pickle would store: class, arguments, attributes and items."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:  # extension types may raise any
            self.unknown.add(type(value).__qualname__)
            return 'unknown'
        if isinstance(reduced, str):
            return reduced
        parts = [*reduced[:3], *(list(items or ()) for items in reduced[3:5])]
        return [self.of(part) for part in parts]


def _name_of(value: Any) -> str:
    return f'{value.__module__}.{value.__qualname__}'


@functools.cache
def _hash_of_source(file: str) -> str | None:
    """Return a hash of a Python file; '' for an extension, whose package has a version.

    None stands for a file that cannot be read, such as one in an archive.
    """
    if not file.endswith(('.py', '.pyc')):
        return ''
    try:
        with open(file, 'rb') as source:
            return hashlib.blake2b(source.read(), digest_size=16).hexdigest()
    except OSError:
        return None


def _has_set(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_set, value))
    return isinstance(value, (set, frozenset))
