"""Replace a file atomically: readers see the old content or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def replace_file(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a temporary file next to `path`, then rename it to `path`.

    The temporary file is removed where writing fails, as on a full disk. Several processes may
    replace the same file at a time. Does not sync: after a power failure the file may be the old
    one or empty. Checkpoints have `checkpoint.io.writer_process.replace_durably` for that.

    Args:
        path: The file; its folder must exist.
        write: Writes the content to the open file that it is given.
    """
    path = Path(path)
    temporary = path.with_name(f'.{path.name}.{uuid.uuid4().hex}.tmp')
    try:
        with open(temporary, 'xb') as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file that others may be reading; return its path."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f'{path}: the folder {path.parent} does not exist')
    if path.exists() and not path.is_file():  # a device must not be replaced by a file
        path.write_text(text, encoding='utf-8')
    else:
        replace_file(path, lambda file: file.write(text.encode()))
    return path
