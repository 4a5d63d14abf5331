"""Disk space for checkpoints, and temporary files that killed writers have left."""

from __future__ import annotations

import os
import shutil

from .writer_process import TEMPORARY, remove_abandoned


def shortage(folder: str, size: int, files: int) -> int:
    """Return how many bytes the disk lacks for more files; 0 if the free space is unknown.

    Args:
        folder: Folder of the files.
        size: Size of a file in bytes.
        files: Number of files.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return max(0, size * files - free)


def remove_leftovers(folder: str) -> list[str]:
    """Remove the temporary files of killed writers from a folder; return their names."""
    return [
        name
        for name in sorted(os.listdir(folder))
        if name.startswith('.')
        and name.endswith(TEMPORARY)
        and remove_abandoned(os.path.join(folder, name))
    ]
