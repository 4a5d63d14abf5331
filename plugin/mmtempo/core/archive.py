"""What of a checkpoint goes into its file, and whether a file is whole."""

from __future__ import annotations

import io
import os
import pickle
import sys
import zipfile
from typing import Any

import torch
from torch.storage import TypedStorage, UntypedStorage

from .staging import StagingArea

PROTOCOL = 2  # torch's
FORMAT_VERSION = b'3\n'  # of torch's zip files
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
        self._kept: list[UntypedStorage] = []  # an address is of one storage while that lives
        self.contents: dict[str, Any] = {}

    def persistent_id(self, obj: Any) -> Any:
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
        return bytes(storage.cpu()) if size else b''


def check_archive(path: str) -> str | None:
    """What is wrong with a checkpoint file; None where every record has its checksum.

    `torch.save` has always stored the CRC-32 of each record, and `torch.load` never looks at
    it. So the checksum is in the file itself, travels with it, and stock files have it too. A
    file of torch before 1.6 is no zip and has none.
    """
    try:
        found = os.stat(path)
        identity = (found.st_size, found.st_mtime_ns, found.st_ino)
        if _checked.get(path) == identity:
            return None
        if found.st_size == 0:
            return 'it is empty'
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError as error:
        return f'{type(error).__name__}: {error.strerror}'
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        return f'it is no complete zip file ({str(error).rstrip(".")})'
    if damaged is not None:
        return f'the checksum of its record {damaged} is wrong'
    _checked[path] = identity
    return None
