"""Whether a folder can hold what a training will save into it."""

from __future__ import annotations

import os
import shutil

from .writer_process import TEMPORARY, remove_abandoned


def shortage(folder: str, size: int, files: int) -> int:
    """Bytes that are missing for so many files more; 0 where there is room, or nobody knows."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return max(0, size * files - free)


def remove_leftovers(folder: str) -> list[str]:
    """Remove the temporary files of writers that were killed; return the names of the removed."""
    return [
        name
        for name in sorted(os.listdir(folder))
        if name.startswith('.')
        and name.endswith(TEMPORARY)
        and remove_abandoned(os.path.join(folder, name))
    ]
