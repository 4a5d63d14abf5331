"""Writer of pickles by opcode, for hostile files."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Global(NamedTuple):
    """Type or function, by module and name."""

    module: str
    name: str


class Call(NamedTuple):
    """Call of a function by REDUCE, or NEWOBJ if `new`; BUILD then sets each state."""

    function: Any
    arguments: Any
    states: Sequence[Any] = ()
    new: bool = False


class Stored(NamedTuple):
    """Storage of the file, by a tuple such as ('storage', type, key, 'cpu', length)."""

    identity: Any


def dumps(value: Any) -> bytes:
    """Return a pickle of protocol 2, with opcodes that torch's safe mode reads."""
    return b'\x80\x02' + _code(value) + pickle.STOP


def _code(value: Any) -> bytes:
    if isinstance(value, Global):
        return f'c{value.module}\n{value.name}\n'.encode(errors='surrogatepass')
    if isinstance(value, Call):
        made = _code(value.function) + _code(value.arguments)
        made += pickle.NEWOBJ if value.new else pickle.REDUCE
        return made + b''.join(_code(state) + pickle.BUILD for state in value.states)
    if isinstance(value, Stored):
        return _code(value.identity) + pickle.BINPERSID
    if isinstance(value, tuple):
        return pickle.MARK + b''.join(map(_code, value)) + pickle.TUPLE
    if isinstance(value, list):
        return pickle.EMPTY_LIST + pickle.MARK + b''.join(map(_code, value)) + pickle.APPENDS
    if isinstance(value, dict):
        items = b''.join(_code(part) for item in value.items() for part in item)
        return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
    if isinstance(value, bytes):  # as protocol 2 writes them
        return _code(Call(Global('_codecs', 'encode'), (value.decode('latin1'), 'latin1')))
    if isinstance(value, bool) or value is None:
        return {None: pickle.NONE, True: pickle.NEWTRUE, False: pickle.NEWFALSE}[value]
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return pickle.BININT + struct.pack('<i', value)
        data = pickle.encode_long(value)
        return pickle.LONG1 + bytes([len(data)]) + data
    if isinstance(value, float):
        return pickle.BINFLOAT + struct.pack('>d', value)
    data = value.encode(errors='surrogatepass')
    return pickle.BINUNICODE + struct.pack('<I', len(data)) + data


def archive(pickled: bytes, storages: Sequence[bytes] = ()) -> io.BytesIO:
    """Return a checkpoint file with a pickle and its storages."""
    file = io.BytesIO()
    records = {'data.pkl': pickled, 'byteorder': b'little', 'version': b'3\n'}
    records.update((f'data/{key}', content) for key, content in enumerate(storages))
    with zipfile.ZipFile(file, 'w') as packed:
        for name, content in records.items():
            packed.writestr(zipfile.ZipInfo(f'archive/{name}'), content)
    file.seek(0)
    return file


def write(path: Path, value: Any) -> Path:
    """Write a checkpoint file whose content is `value`."""
    path.write_bytes(archive(dumps(value)).getvalue())
    return path


NDARRAY = Global('numpy', 'ndarray')
DTYPE = Global('numpy', 'dtype')
RECONSTRUCT = Global('numpy._core.multiarray', '_reconstruct')
SCALAR = Global('numpy._core.multiarray', 'scalar')
HISTORY = Global('mmengine.logging.history_buffer', 'HistoryBuffer')
GETATTR = Global('__builtin__', 'getattr')
PLAIN_STATE = (3, '<', None, None, None, -1, -1, 0)


def dtype(code: Any = 'f8', *states: Any) -> Call:
    """Return a dtype, with NumPy's state of a plain one unless other states are given."""
    return Call(DTYPE, (code, False, True), states or (PLAIN_STATE,))


def array(raw: Any, shape: Any, kind: Any = None, fortran: Any = False) -> Call:
    """Return an array as NumPy pickles it."""
    start = Call(RECONSTRUCT, (NDARRAY, (0,), b'b'))
    state = (1, shape, dtype() if kind is None else kind, fortran, raw)
    return start._replace(states=(state,))
