"""Records of a checkpoint file, and verification of checkpoint files."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import time
import zipfile
from collections import OrderedDict
from typing import Any, BinaryIO

import torch
from torch.storage import TypedStorage, UntypedStorage

from .host_buffer import HostBuffer
from .writer_process import ALIGNMENT

PROTOCOL = 2  # as torch.save
FORMAT_VERSION = b'3\n'  # of torch's zip files
IS_FOLDER = 0x10  # bit in a zip entry's external attributes
GLOBAL = re.compile(rb'c([\w.]+)\n([\w.]+)\n', re.ASCII)  # opcode of pickle protocol 2
ODD_DTYPE = re.compile(rb'X.\0\0\0([OMmV]\d+|f16|c32)[qr]', re.DOTALL)  # numpy dtypes not plain
CHUNK = 1 << 20  # bytes that are read at once
CLOCK_TICK = 2 * 10**9  # nanoseconds; coarsest time stamps of file systems
# Hold the GIL for at most SLICE seconds, then sleep for BREATH, so that the training thread is not
# starved: a thread that waits for the GIL gets it every 5 ms, and loses it at its next operator.
SLICE, BREATH = 5e-5, 5e-5
# Types that are no storages and contain none.
PLAIN = frozenset({int, float, bool, str, type(None)})
MAX_KEYS = 1 << 16
_key_pieces: dict[str | int, bytes] = {}  # pickles of dict keys
_checked: dict[str, tuple] = {}  # paths of verified files, and what identifies their content


def records_of(tree: Any, buffer: HostBuffer) -> list[tuple[str, Any]]:
    """Return the records of a file as `torch.save` writes it.

    Args:
        tree: Content of the file.
        buffer: Buffer that holds most of the tensors.

    Returns:
        Name and content of each record; the content is bytes, or offset and size in the buffer.
    """
    pickled = _PiecewisePickle(buffer)
    pickled.add(tree)
    records: list[tuple[str, Any]] = [
        ('data.pkl', pickled.join()),
        ('byteorder', sys.byteorder.encode()),
    ]
    records += [(f'data/{key}', content) for key, content in pickled.contents.items()]
    return [*records, ('version', FORMAT_VERSION)]


def names_in(records: list[tuple[str, Any]]) -> frozenset[str]:
    """Return the names of all types and functions in a file's records, and possibly more.

    Loading a file of 100 MB holds the GIL for 64 ms, so the names are found by a search, which may
    take a text for a name.
    """
    pickled = records[0][1]
    names = {b'.'.join(pair) for pair in GLOBAL.findall(pickled)}
    names.update(b'dtype ' + code for code in ODD_DTYPE.findall(pickled))
    return frozenset(name.decode() for name in names)


# Pickled in one piece, a save costs steps in Python 0.97 x stock instead of 0.13 x (bar 0.45), and
# takes 54 instead of 22 iterations (`benchmark.py checkpoint --quick`).
class _PiecewisePickle:
    """A pickle joined from pieces, most of which are cached from the previous file.

    To pickle a tensor takes dozens of objects and calls. The result for a tensor in the buffer is
    the same as long as its slot is allocated, so it is pickled once. Each piece is a complete
    pickle without its first and last opcodes; pieces are joined by the opcodes of dicts.

    Args:
        buffer: Buffer that holds most of the tensors.
    """

    def __init__(self, buffer: HostBuffer) -> None:
        self._buffer = buffer
        self._file = io.BytesIO()
        self._pickler = _Pickler(self._file, buffer)
        self._pieces = [pickle.PROTO + bytes([PROTOCOL])]
        if len(_key_pieces) > MAX_KEYS:
            _key_pieces.clear()  # the keys are different each time

    @property
    def contents(self) -> dict[str, Any]:
        """Content of each storage by its key."""
        return self._pickler.contents

    def join(self) -> bytes:
        """Return the complete pickle."""
        return b''.join([*self._pieces, pickle.STOP])

    def add(self, value: Any) -> None:
        """Append a value."""
        kind = type(value)
        if kind is dict:
            self._pieces.append(pickle.EMPTY_DICT)
            self._add_items(value)
        elif kind is OrderedDict:
            self._pieces.append(self._piece(OrderedDict()))
            self._add_items(value)
            if vars(value):  # `_metadata` of a state_dict
                self._pieces += [self._piece(vars(value)), pickle.BUILD]
        elif kind is torch.Tensor:
            self._pieces.append(self._tensor_piece(value))
        else:
            self._pieces.append(self._piece(value))

    def _add_items(self, items: dict) -> None:
        if not items:
            return
        self._pieces.append(pickle.MARK)
        for key, item in items.items():
            self._pickler.release_gil()
            self._pieces.append(self._key_piece(key))
            self.add(item)
        self._pieces.append(pickle.SETITEMS)

    def _tensor_piece(self, tensor: torch.Tensor) -> bytes:
        slot = self._buffer.slot_of(tensor)
        if slot is None or not slot.size:
            return self._piece(tensor)
        # Each slot has a separate storage.
        self.contents[_storage_key(slot.start)] = slot.start, tensor.nbytes
        if slot.pickled is None:
            slot.pickled = self._piece(tensor)
        return slot.pickled

    def _key_piece(self, key: Any) -> bytes:
        # Exact types, because True == 1 would be found in the cache but is pickled differently.
        if type(key) is not str and type(key) is not int:
            return self._piece(key)
        piece = _key_pieces.get(key)
        if piece is None:
            piece = _key_pieces[key] = self._piece(key)
        return piece

    def _piece(self, value: Any) -> bytes:
        """Return a value's pickle without the opcodes that begin and end a pickle."""
        self._file.seek(0)
        self._file.truncate()
        self._pickler.clear_memo()  # a piece must not refer to objects of another piece
        self._pickler.dump(value)
        return self._file.getvalue()[2:-1]


def _storage_key(offset: int) -> str:
    return str(offset // ALIGNMENT)


class _Pickler(pickle.Pickler):
    """A pickler that writes keys in place of storages, as torch's does."""

    def __init__(self, file: io.BytesIO, buffer: HostBuffer) -> None:
        super().__init__(file, PROTOCOL)
        self._buffer = buffer
        self._keys: dict[int, str] = {}  # by the address of the storage
        self._until = time.perf_counter() + SLICE
        self._outside = 0  # number of storages that are not in the buffer
        # Keeps the storages alive: another one could get the address of a freed storage.
        self._kept: list[UntypedStorage] = []
        self.contents: dict[str, Any] = {}

    def release_gil(self) -> None:
        """Let other threads have the GIL if this one has held it for SLICE seconds."""
        if time.perf_counter() > self._until:
            time.sleep(BREATH)
            self._until = time.perf_counter() + SLICE

    def persistent_id(self, obj: Any) -> Any:
        # Called with the GIL held for each of thousands of numbers and strings.
        if type(obj) in PLAIN:
            return None
        self.release_gil()
        if isinstance(obj, TypedStorage):
            storage = obj._untyped_storage
            kind, length = getattr(torch, obj._pickle_storage_type()), obj._size()
        elif isinstance(obj, UntypedStorage):
            storage, kind, length = obj, UntypedStorage, obj.nbytes()
        else:
            return None
        key = self._keys.get(storage._cdata)
        if key is None:
            key = self._keys[storage._cdata] = self._store(storage)
        return 'storage', kind, key, 'cpu', length

    def _store(self, storage: UntypedStorage) -> str:
        self._kept.append(storage)
        size = storage.nbytes()
        offset = self._buffer.offset(storage.data_ptr(), size) if size else None
        if offset is None:
            key = _storage_key(self._buffer.size + self._outside * ALIGNMENT)
            self._outside += 1
            self.contents[key] = _bytes_of(storage)
        else:
            key = _storage_key(offset)
            self.contents[key] = offset, size
        return key


def _bytes_of(storage: UntypedStorage) -> bytes:
    if not storage.nbytes():
        return b''
    # Through numpy, because `bytes(storage)` would convert one element at a time.
    flat = torch.empty(0, dtype=torch.uint8, device='cpu').set_(storage.cpu())
    return flat.numpy().tobytes()


def check_archive(path: str) -> str | None:
    """Return what is wrong with a checkpoint file; None if the checksum of every record is right.

    `torch.save` stores the CRC-32 of each record, which `torch.load` does not verify. So files of
    stock have checksums as well. A file of torch before 1.6 is not a zip file and has none.
    """
    now = time.time_ns()
    try:
        status = os.stat(path)
        identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if _checked.get(path) == identity:
            return None
        if status.st_size == 0:
            return 'it is empty'
        with open(path, 'rb') as file:
            problem = _problem(file)
    except OSError as error:
        return f'{type(error).__name__}: {error.strerror}'
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f'it is not a complete zip file ({reason.rstrip(".")})'
    # A file that was changed within the last tick can change again without a new time stamp.
    if problem is None and now - max(status.st_mtime_ns, status.st_ctime_ns) > CLOCK_TICK:
        _checked[path] = identity
    return problem


def _problem(file: BinaryIO) -> str | None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # The checksum is not applied to these: torch skips a folder and leaves memory as it is.
            if info.compress_type != zipfile.ZIP_STORED or info.external_attr & IS_FOLDER:
                return f'its record {info.filename} is not a stored file'
            try:
                with archive.open(info) as record:
                    while record.read(CHUNK):
                        pass
            except zipfile.BadZipFile:
                return f'the checksum of its record {info.filename} is wrong'
        names = [info.filename.partition('/')[2] for info in archive.infolist()]
    # Python's reader accepts some damage that torch's reader does not.
    file.seek(0)
    if sorted(torch._C.PyTorchFileReader(file).get_all_records()) != sorted(names):
        return 'its table of contents is wrong'
    return None
