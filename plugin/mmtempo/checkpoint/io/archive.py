"""What of a checkpoint goes into its file, and whether a file is whole."""

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

from .host_buffer import ALIGNMENT, HostBuffer

PROTOCOL = 2  # torch's
FORMAT_VERSION = b'3\n'  # of torch's zip files
IS_FOLDER = 0x10  # in a zip's attributes
GLOBAL = re.compile(rb'c([\w.]+)\n([\w.]+)\n', re.ASCII)  # as protocol 2 writes one
ODD_DTYPE = re.compile(rb'X.\0\0\0([OMmV]\d+|f16|c32)[qr]', re.DOTALL)  # of numpy; not plain
CHUNK = 1 << 20
CLOCK_TICK = 2 * 10**9  # nanoseconds; the coarsest of file systems
# Seconds for which Python's lock is kept from the training, and for which it is left to it: who
# waits for it without being let in gets it every 5 ms, and loses it again at its next operator.
SLICE, BREATH = 5e-5, 5e-5
# Neither storages, nor with any inside.
PLAIN = frozenset({int, float, bool, str, type(None)})
MOST = 1 << 16
_keys: dict[str | int, bytes] = {}  # of dicts, pickled
_checked: dict[str, tuple] = {}


def records_of(tree: Any, area: HostBuffer) -> list[tuple[str, Any]]:
    """The records of a file as `torch.save` writes it: names, and bytes or places in the area."""
    pickled = _Pickled(area)
    pickled.add(tree)
    records: list[tuple[str, Any]] = [
        ('data.pkl', pickled.whole()),
        ('byteorder', sys.byteorder.encode()),
    ]
    records += [(f'data/{key}', content) for key, content in pickled.contents.items()]
    return [*records, ('version', FORMAT_VERSION)]


def names_in(records: list[tuple[str, Any]]) -> frozenset[str]:
    """Return what types and functions a file's records name, and perhaps a few more names.

    Reading the pickle would take Python's lock for too long; a text in it may look like a name.
    """
    pickled = records[0][1]
    found = {b'.'.join(pair) for pair in GLOBAL.findall(pickled)}
    found.update(b'dtype ' + code for code in ODD_DTYPE.findall(pickled))
    return frozenset(name.decode() for name in found)


class _Pickled:
    """A pickle that is put together of pieces, most of which the file before had as well.

    What a pickler does for a tensor takes it dozens of objects and calls. For one in the area it
    comes out the same as long as that lies there in the same way, so it is done once. Each piece
    is a pickle by itself, but for its first and last opcodes; dicts are what joins them.

    Args:
        area: Where the tensors are.
    """

    def __init__(self, area: HostBuffer) -> None:
        self._area = area
        self._buffer = io.BytesIO()
        self._pickler = _Pickler(self._buffer, area)
        self._parts = [pickle.PROTO + bytes([PROTOCOL])]
        if len(_keys) > MOST:
            _keys.clear()  # they change again and again

    @property
    def contents(self) -> dict[str, Any]:
        return self._pickler.contents

    def whole(self) -> bytes:
        return b''.join([*self._parts, pickle.STOP])

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind is dict:
            self._parts.append(pickle.EMPTY_DICT)
            self._add_items(value)
        elif kind is OrderedDict:
            self._parts.append(self._piece(OrderedDict()))
            self._add_items(value)
            if vars(value):  # a state_dict's `_metadata`
                self._parts += [self._piece(vars(value)), pickle.BUILD]
        elif kind is torch.Tensor:
            self._parts.append(self._of_tensor(value))
        else:
            self._parts.append(self._piece(value))

    def _add_items(self, items: dict) -> None:
        if not items:
            return
        self._parts.append(pickle.MARK)
        for key, item in items.items():
            self._pickler.breathe()
            self._parts.append(self._of_key(key))
            self.add(item)
        self._parts.append(pickle.SETITEMS)

    def _of_tensor(self, tensor: torch.Tensor) -> bytes:
        place = self._area.place_of(tensor)
        if place is None or not place.room:
            return self._piece(tensor)
        # It has a storage of its own there.
        self.contents[_name_of(place.start)] = place.start, tensor.nbytes
        if place.pickled is None:
            place.pickled = self._piece(tensor)
        return place.pickled

    def _of_key(self, key: Any) -> bytes:
        if type(key) is not str and type(key) is not int:  # True is 1, but not in the file
            return self._piece(key)
        piece = _keys.get(key)
        if piece is None:
            piece = _keys[key] = self._piece(key)
        return piece

    def _piece(self, value: Any) -> bytes:
        """Pickled, without what begins and ends a pickle."""
        self._buffer.seek(0)
        self._buffer.truncate()
        self._pickler.clear_memo()  # what is memorised comes from the same piece
        self._pickler.dump(value)
        return self._buffer.getvalue()[2:-1]


def _name_of(place: int) -> str:
    return str(place // ALIGNMENT)


class _Pickler(pickle.Pickler):
    """Names storages instead of writing them, as torch's own does."""

    def __init__(self, file: io.BytesIO, area: HostBuffer) -> None:
        super().__init__(file, PROTOCOL)
        self._area = area
        self._keys: dict[int, str] = {}
        self._until = time.perf_counter() + SLICE
        self._outside = 0
        self._kept: list[UntypedStorage] = []  # an address is of one storage while that lives
        self.contents: dict[str, Any] = {}

    def breathe(self) -> None:
        """Let the training have Python's lock from time to time."""
        if time.perf_counter() > self._until:
            time.sleep(BREATH)
            self._until = time.perf_counter() + SLICE

    def persistent_id(self, obj: Any) -> Any:
        # Called for each number and string: thousands of times, all of them with Python's lock.
        if type(obj) in PLAIN:
            return None
        self.breathe()
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
        place = self._area.offset(storage.data_ptr(), size) if size else None
        if place is None:
            key = _name_of(self._area.size + self._outside * ALIGNMENT)
            self._outside += 1
            self.contents[key] = _bytes_of(storage)
        else:
            key = _name_of(place)
            self.contents[key] = place, size
        return key


def _bytes_of(storage: UntypedStorage) -> bytes:
    if not storage.nbytes():
        return b''
    # `bytes` would go through it one by one.
    flat = torch.empty(0, dtype=torch.uint8, device='cpu').set_(storage.cpu())
    return flat.numpy().tobytes()


def check_archive(path: str) -> str | None:
    """What is wrong with a checkpoint file; None where every record has its checksum.

    `torch.save` has always stored the CRC-32 of each record, and `torch.load` never looks at
    it. So the checksum is in the file itself, travels with it, and stock files have it too. A
    file of torch before 1.6 is no zip and has none.
    """
    now = time.time_ns()
    try:
        found = os.stat(path)
        identity = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if _checked.get(path) == identity:
            return None
        if found.st_size == 0:
            return 'it is empty'
        with open(path, 'rb') as file:
            problem = _problem(file)
    except OSError as error:
        return f'{type(error).__name__}: {error.strerror}'
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f'it is no complete zip file ({reason.rstrip(".")})'
    # A file that was just changed could change once more, and keep its time.
    if problem is None and now - max(found.st_mtime_ns, found.st_ctime_ns) > CLOCK_TICK:
        _checked[path] = identity
    return problem


def _problem(file: BinaryIO) -> str | None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # Neither has a checksum: torch leaves a folder's memory as it was.
            if info.compress_type != zipfile.ZIP_STORED or info.external_attr & IS_FOLDER:
                return f'its record {info.filename} is no stored file'
            try:
                with archive.open(info) as record:
                    while record.read(CHUNK):
                        pass
            except zipfile.BadZipFile:
                return f'the checksum of its record {info.filename} is wrong'
        names = [info.filename.partition('/')[2] for info in archive.infolist()]
    # What Python's reader is lenient about.
    file.seek(0)
    if sorted(torch._C.PyTorchFileReader(file).get_all_records()) != sorted(names):
        return 'its table of contents is wrong'
    return None
