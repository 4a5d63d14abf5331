"""Checked stand-ins for globals of a checkpoint of mmengine that torch does not allow.

A pickle builds an object in steps (type, arguments, state), and the file controls each of them.
The real `numpy.dtype` and `numpy.ndarray` trust their state: a dtype with a subarray of objects
turns bytes of the file into a pointer. Therefore the file builds stand-ins, which only store what
they are given. `resolve` checks the finished values and replaces them by the real objects.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from torch.torch_version import TorchVersion

NUMBERS = frozenset(
    ('b1', 'i1', 'u1', 'i2', 'u2', 'i4', 'u4', 'i8', 'u8', 'f2', 'f4', 'f8', 'c8', 'c16')
)
LONGEST = 1 << 20  # most characters of a numpy string
MOST_DIMENSIONS = 32
LAST_CHARACTER = 0x10FFFF
STATISTICS = ('min', 'max', 'current', 'mean')
_NATIVE = ('|', '=', '<' if sys.byteorder == 'little' else '>')
ANNEALING = ('_annealing_cos', '_annealing_linear')


class StandIn:
    """Placeholder of an object that stores what the file describes."""

    # Real arrays are not hashable either, and `resolve` does not replace keys.
    __hash__: Any = None

    def real(self) -> Any:
        """Check the description, and return the object."""
        raise NotImplementedError


class _Dtype(StandIn):
    """Stand-in for a `numpy.dtype` of plain numbers or strings."""

    _code: Any = None
    _state: Any = None

    def __init__(self, code: Any = None, align: Any = False, copy: Any = False) -> None:
        self._code = code

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def real(self) -> np.dtype:
        code = self._code
        if type(code) is not str or not (code in NUMBERS or _is_string(code)):
            shown = code[:20] if type(code) is str else type(code).__name__
            raise ValueError(f'numpy dtype {shown!r}: expected a plain number or string')
        dtype = np.dtype(code)
        state = self._state
        if state is None:
            return dtype
        if type(state) is not tuple or len(state) != 8 or not _are_ints(state[5:]):
            raise ValueError(f'numpy dtype {code}: its state is malformed')
        version, order, *subarray_and_fields = state[:5]
        sizes = ((-1, -1), (dtype.itemsize, dtype.alignment))
        if (
            type(version) is not int
            or version != 3
            or type(order) is not str
            or order not in ('<', '>', '|', '=')
            or any(part is not None for part in subarray_and_fields)
            or state[5:7] not in sizes
        ):
            raise ValueError(f'numpy dtype {code}: its state is not that of a plain type')
        return dtype if order in _NATIVE else dtype.newbyteorder('S')


class _Array(StandIn):
    """Stand-in for a `numpy.ndarray` of plain numbers or strings."""

    _state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def real(self) -> np.ndarray:
        state = self._state
        if type(state) is not tuple or len(state) != 5:
            raise ValueError('numpy array: its state is malformed')
        version, shape, kind, fortran, raw = state
        if (
            type(version) is not int
            or version != 1
            or type(shape) is not tuple
            or len(shape) > MOST_DIMENSIONS
            or not _are_ints(shape)
            or any(length < 0 for length in shape)
            or type(kind) is not _Dtype
            or type(fortran) not in (bool, int)
            or type(raw) is not bytes
        ):
            raise ValueError('numpy array: its state is not that of plain numbers or strings')
        view = _array_of(raw, shape, kind.real(), fortran=bool(fortran))
        return view.astype(
            view.dtype.newbyteorder('='), order='K'
        )  # a copy in native byte order, as numpy makes


class _History(StandIn):
    """Stand-in for a `HistoryBuffer`, built from its state or from its two arrays."""

    _logs: Any = None
    _counts: Any = None
    _state: Any = None

    def __init__(self, logs: Any = None, counts: Any = None) -> None:
        self._logs, self._counts = logs, counts

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def real(self) -> HistoryBuffer:
        if self._state is None:
            return HistoryBuffer(*_histories(self._logs, self._counts))
        state = self._state
        expected = {'max_length', '_log_history', '_count_history'}
        if type(state) is not dict or state.keys() - {'statistics_methods'} != expected:
            raise ValueError('HistoryBuffer: its state has other keys than mmengine writes')
        length = state['max_length']
        if type(length) is not int or length < 0:
            raise ValueError('HistoryBuffer: its max_length is not a whole number from 0 on')
        # Its statistics are those of this program; a file cannot redefine them.
        return HistoryBuffer(
            *_histories(state['_log_history'], state['_count_history']), max_length=length
        )


class _Function(StandIn):
    """Stand-in for a function, which cannot be called."""

    __hash__ = object.__hash__  # torch keeps the allowed globals in a set

    def __init__(self, function: Callable) -> None:
        self._function = function

    def real(self) -> Callable:
        return self._function


class _Owner(StandIn):
    """Stand-in for a class that is only named to access its functions."""

    __hash__ = object.__hash__

    def __init__(self, path: str) -> None:
        self.path = path
        self.functions: dict[str, Callable] = {}

    def real(self) -> Any:
        raise ValueError(f'{self.path}: only its functions may be named')


class _Version:
    """Stand-in for `TorchVersion`, a string without a state."""

    def __new__(cls, text: Any = '') -> Any:
        if type(text) is not str:
            raise ValueError('TorchVersion: expected a string')
        return TorchVersion(text)


_HISTORY = _Owner(f'{HistoryBuffer.__module__}.{HistoryBuffer.__qualname__}')
_HISTORY.functions.update((name, getattr(HistoryBuffer, name)) for name in STATISTICS)


def _attribute(owner: Any, name: Any) -> _Function:
    """Stand in for `getattr`, by which a pickle names the functions of a class."""
    known = _HISTORY if owner is _History else owner
    if type(known) is not _Owner or type(name) is not str or name not in known.functions:
        shown = name[:80] if type(name) is str else type(name).__name__
        path = known.path if type(known) is _Owner else type(owner).__name__
        raise ValueError(
            f'the checkpoint names attribute {shown!r} of {path}; expected a statistic of '
            'HistoryBuffer or an annealing function of OneCycleParamScheduler'
        )
    return _Function(known.functions[name])


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    """Stand in for `numpy.core.multiarray._reconstruct`, which starts every pickled array."""
    is_empty = type(shape) is tuple and _are_ints(shape) and shape == (0,)
    if kind is not _Array or not is_empty or type(code) not in (bytes, str) or code not in _START:
        raise ValueError('numpy array: it does not start as numpy writes it')
    return _Array()


_START = (b'b', 'b')


def _scalar(kind: Any, raw: Any) -> Any:
    """Stand in for `numpy.core.multiarray.scalar`; a scalar is immutable, so return a real one."""
    if type(kind) is not _Dtype or type(raw) is not bytes:
        raise ValueError('numpy scalar: expected a plain type and its bytes')
    return _array_of(raw, (), kind.real())[()]


def _config_dict(items: Any = None) -> ConfigDict:
    """Stand in for `ConfigDict`, which a pickle builds from a dict."""
    if type(items) is not dict:
        raise ValueError('ConfigDict: expected the dict of its items')
    return ConfigDict(items)  # not a dict: resume compares the pickles of metainfo


def _no_bytes() -> bytes:
    """Stand in for `bytes`, which a pickle of protocol 2 only names for an empty value."""
    return b''


def _slice(*bounds: Any) -> slice:
    if not 1 <= len(bounds) <= 3 or any(type(b) not in (int, type(None)) for b in bounds):
        raise ValueError('slice: expected up to three whole numbers')
    return slice(*bounds)


def safe_globals() -> list[tuple[Any, str]]:
    """Return stand-ins and the names that they stand for, as entries of torch's allow-list."""
    allowed: list[tuple[Any, str]] = [
        (_Array, 'numpy.ndarray'),
        (_Dtype, 'numpy.dtype'),
        (_History, _HISTORY.path),
        (_attribute, 'builtins.getattr'),
        (_slice, 'builtins.slice'),
        (_no_bytes, 'builtins.bytes'),
        (_config_dict, f'{ConfigDict.__module__}.ConfigDict'),
        (_Version, 'torch.torch_version.TorchVersion'),
    ]
    # numpy 2 renamed its core module; files of each version must load under each version.
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        allowed.append((_reconstruct, f'{module}._reconstruct'))
        allowed.append((_scalar, f'{module}.scalar'))
    owners: dict[str, _Owner] = {}
    functions = [getattr(OneCycleParamScheduler, name) for name in ANNEALING]
    for function in [*functions, *HistoryBuffer._statistics_methods.values()]:
        module, name = getattr(function, '__module__', ''), getattr(function, '__qualname__', '')
        scope, _, last = f'{module}.{name}'.rpartition('.')
        if scope == _HISTORY.path or '<' in name:
            continue  # listed above, or a lambda or local function, which cannot be pickled
        if scope == module:
            allowed.append((_Function(function), f'{module}.{name}'))
        else:  # pickled as an attribute of its class
            owners.setdefault(scope, _Owner(scope)).functions[last] = function
    return [*allowed, *((owner, path) for path, owner in owners.items())]


def resolve(value: Any) -> Any:
    """Return a loaded checkpoint with each stand-in replaced, in place except for tuples.

    Args:
        value: Value that `torch.load` has returned.

    Raises:
        ValueError: The file describes a value that neither numpy nor mmengine writes.
    """
    return _resolved(value, {})


_LEAVES = frozenset({str, int, float, bool, type(None), bytes, complex})


def _resolved(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """Return a value with its stand-ins replaced.

    Args:
        value: Part of a checkpoint.
        known: Values and their replacements by the address of the value. The reference to the
            value keeps its address from being reused.
    """
    if type(value) in _LEAVES:
        return value
    if id(value) in known:
        new = known[id(value)][1]
        if new is _PENDING:
            raise ValueError('a tuple contains itself')
        return new
    if isinstance(value, StandIn):
        new = value.real()
        known[id(value)] = value, new
        return new
    if isinstance(value, type) and issubclass(value, (StandIn, _Version)):
        raise ValueError('found a type, expected a value')
    if type(value) is tuple:
        known[id(value)] = value, _PENDING
        items = [_resolved(item, known) for item in value]
        changed = any(one is not other for one, other in zip(items, value))
        new = tuple(items) if changed else value
        known[id(value)] = value, new
        return new
    known[id(value)] = value, value
    if isinstance(value, dict):
        _replace(value, known)
    elif isinstance(value, list):
        value[:] = [_resolved(item, known) for item in value]
    attributes = getattr(value, '__dict__', None)
    if attributes and type(attributes) is dict:  # a state_dict's `_metadata`
        _replace(attributes, known)
    return value


_PENDING = object()


def _replace(items: dict, known: dict[int, tuple[Any, Any]]) -> None:
    for key, item in list(dict.items(items)):
        new = _resolved(item, known)
        if new is not item:
            dict.__setitem__(items, key, new)


def _histories(logs: Any, counts: Any) -> list[np.ndarray]:
    if type(logs) is not _Array or type(counts) is not _Array:
        raise ValueError('HistoryBuffer: its histories are not numpy arrays')
    found = [logs.real(), counts.real()]
    if any(array.ndim != 1 or array.dtype.kind not in 'biuf' for array in found):
        raise ValueError('HistoryBuffer: its histories are not one-dimensional arrays of numbers')
    if len(found[0]) != len(found[1]):
        raise ValueError(f'HistoryBuffer: {len(found[0])} values, but {len(found[1])} counts')
    return found


def _array_of(
    raw: bytes, shape: tuple[int, ...], dtype: np.dtype, fortran: bool = False
) -> np.ndarray:
    """Return an array over bytes, after a check of their number and values."""
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f'numpy array: {len(raw)} bytes for shape {shape} of {dtype}'[:200])
    # The loops of numpy rely on valid bools and characters.
    if dtype.kind == 'b' and raw.translate(None, b'\0\1'):
        raise ValueError('numpy array: a bool is neither 0 nor 1')
    if dtype.kind == 'U':
        points = np.ndarray(len(raw) // 4, np.dtype('u4').newbyteorder(dtype.byteorder), raw)
        if (points > LAST_CHARACTER).any():
            raise ValueError('numpy string: a character is outside of Unicode')
    return np.ndarray(shape, dtype, buffer=raw, order='F' if fortran else 'C')


def _is_string(code: str) -> bool:
    length = code[1:]
    ascii_digits = length.isascii() and length.isdigit() and len(length) <= 7
    return code[:1] in ('U', 'S') and ascii_digits and int(length) <= LONGEST


def _are_ints(values: tuple) -> bool:
    return all(type(value) is int for value in values)
