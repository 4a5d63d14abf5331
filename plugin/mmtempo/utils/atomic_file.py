"""Writes what people ask for, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file, which others may be reading; returns where it is."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f'{path}: the folder {path.parent} does not exist')
    if path.exists() and not path.is_file():  # a device, which nothing should replace
        path.write_text(text, encoding='utf-8')
        return path
    part = path.with_name(f'{path.name}.part')
    try:
        part.write_text(text, encoding='utf-8')
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # on a full disk, of all places
        raise
    return path
