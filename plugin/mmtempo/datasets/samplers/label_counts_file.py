"""The file in which counted labels are kept."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
import zipfile
import zlib

import numpy as np
from mmengine.logging import print_log

DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
KEY_BYTES = 32


class LabelCountsFile:
    """Rows of counts by key, in an .npz file: at any moment the old one or the new one, whole.

    A file that cannot be read is as good as none; a line in the log says so.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> dict[bytes, np.ndarray]:
        """What is known already."""
        try:
            return self._read()
        except FileNotFoundError:
            return {}
        except DAMAGE as error:
            self._warn('cannot be read, labels are counted again', error)
            return {}

    def write(self, rows: dict[bytes, np.ndarray]) -> None:
        """Replace the file; where that fails, the next training counts again."""
        folder, name = os.path.split(os.path.abspath(self.path))
        # Several trainings may write at a time.
        temporary = os.path.join(folder, f'.{name}.{uuid.uuid4().hex}.tmp')
        keys = np.frombuffer(b''.join(rows), dtype=np.uint8).reshape(-1, KEY_BYTES)
        try:
            os.makedirs(folder, exist_ok=True)
            with open(temporary, 'xb') as file:
                np.savez(file, keys=keys, counts=np.stack(list(rows.values())))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            self._warn('cannot be written, the next training counts again', error)
        finally:
            with contextlib.suppress(OSError):  # it has its name, or was never there
                os.remove(temporary)

    def _read(self) -> dict[bytes, np.ndarray]:
        # Opened here, as numpy does not close what it cannot read.
        with open(self.path, 'rb') as file, np.load(file, allow_pickle=False) as content:
            keys, counts = content['keys'], content['counts']
        if keys.dtype != np.uint8 or keys.shape != (len(counts), KEY_BYTES) or counts.ndim != 2:
            raise ValueError(f'keys {keys.dtype} {keys.shape}, counts {counts.shape}')
        if counts.dtype != np.int64:
            raise ValueError(f'counts of {counts.dtype}')
        return {key.tobytes(): row for key, row in zip(keys, counts)}

    def _warn(self, what: str, error: Exception) -> None:
        print_log(
            f'label counts: {self.path} {what} ({type(error).__name__}: {error})',
            logger='current',
            level=logging.WARNING,
        )
