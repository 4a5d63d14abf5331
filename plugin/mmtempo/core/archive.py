"""What of a checkpoint goes into its file, and whether a file is whole."""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
import zipfile
from typing import Any, BinaryIO

import torch
from torch.storage import TypedStorage, UntypedStorage

from .staging import StagingArea

PROTOCOL = 2  # torch's
FORMAT_VERSION = b'3\n'  # of torch's zip files
IS_FOLDER = 0x10  # in a zip's attributes
CHUNK = 1 << 20
CLOCK_TICK = 2 * 10**9  # nanoseconds; the coarsest of file systems
# Seconds for which Python's lock is kept from the training, and for which it is left to it: who
# waits for it without being let in gets it every 5 ms, and loses it again at its next operator.
SLICE, BREATH = 5e-5, 5e-5
_checked: dict[str, tuple] = {}


def records_of(tree: Any, area: StagingArea) -> list[tuple[str, Any]]:
    """The records of a file as `torch.save` writes it: names, and bytes or places in the area."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, area)
    pickler.dump(tree)
    records: list[tuple[str, Any]] = [
        ('data.pkl', buffer.getvalue()),
        ('byteorder', sys.byteorder.encode()),
    ]
    records += [(f'data/{key}', content) for key, content in pickler.contents.items()]
    return [*records, ('version', FORMAT_VERSION)]


class _Pickler(pickle.Pickler):
    """Names storages instead of writing them, as torch's own does."""

    def __init__(self, file: io.BytesIO, area: StagingArea) -> None:
        super().__init__(file, PROTOCOL)
        self._area = area
        self._keys: dict[int, str] = {}
        self._until = time.perf_counter() + SLICE
        self._kept: list[UntypedStorage] = []  # an address is of one storage while that lives
        self.contents: dict[str, Any] = {}

    def persistent_id(self, obj: Any) -> Any:
        # Called for each number and string: thousands of times, all of them with Python's lock.
        if time.perf_counter() > self._until:
            time.sleep(BREATH)
            self._until = time.perf_counter() + SLICE
        if isinstance(obj, TypedStorage):
            storage = obj._untyped_storage
            kind, length = getattr(torch, obj._pickle_storage_type()), obj._size()
        elif isinstance(obj, UntypedStorage):
            storage, kind, length = obj, UntypedStorage, obj.nbytes()
        else:
            return None
        key = self._keys.get(storage._cdata)
        if key is None:
            key = self._keys[storage._cdata] = str(len(self._keys))
            self._kept.append(storage)
            self.contents[key] = self._content(storage)
        return 'storage', kind, key, 'cpu', length

    def _content(self, storage: UntypedStorage) -> Any:
        size = storage.nbytes()
        place = self._area.offset(storage.data_ptr(), size) if size else None
        if place is not None:
            return place, size
        if not size:
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
