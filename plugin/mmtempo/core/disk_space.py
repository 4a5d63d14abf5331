"""Whether a folder can hold what a training will save into it."""

from __future__ import annotations

import contextlib
import os
import shutil

from .writer_process import TEMPORARY, remove


def shortage(folder: str, size: int, files: int) -> int:
    """Bytes that are missing for so many files more; 0 where there is room, or nobody knows."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return max(0, size * files - free)


def remove_leftovers(folder: str) -> list[str]:
    """Remove what a writer that was killed has left; the names of what could be."""
    removed = []
    for name in sorted(os.listdir(folder)):
        if name.startswith('.') and name.endswith(TEMPORARY):
            with contextlib.suppress(OSError):  # somebody else's
                remove(os.path.join(folder, name))
                removed.append(name)
    return removed
