"""Finds the newest checkpoint that is whole."""

from __future__ import annotations

import os
import os.path as osp
import re
from collections.abc import Iterable
from typing import Any

from .core.archive import check_archive
from .serialization import load_from_local

MARKER = 'last_checkpoint'
# Of the best weights, which have no optimizer, and what is published, which has less.
NO_RESUME = re.compile(r'best_|.*-[0-9a-f]{8}\.pth$')


def newest_whole(work_dir: str, folders: Iterable[str] = ()) -> tuple[str | None, list[str]]:
    """The checkpoint to resume from, and what was wrong with those that come before it.

    It is the one that the marker `last_checkpoint` names. Where that is broken, it is the one
    with the most iterations among those beside it, in the work dir and in `folders`.

    Args:
        work_dir: Where the marker is.
        folders: Where else checkpoints may be. Defaults to ().

    Returns:
        None where there is no checkpoint at all.

    Raises:
        ValueError: There are checkpoints, and all are broken.
    """
    marker = osp.join(work_dir, MARKER)
    named = ''
    if osp.isfile(marker):
        with open(marker, encoding='utf-8', errors='replace') as file:
            named = file.read().strip()
        reason = _reason(named, marker)
        if reason is None:
            return named, []
        problems = [reason]
    else:
        return None, []
    places = dict.fromkeys([osp.dirname(named) or work_dir, work_dir, *folders])
    found = []
    for path in _checkpoints(place for place in places if osp.isdir(place)):
        try:
            found.append((_iterations(path), osp.getmtime(path), path))
        except (ValueError, OSError) as error:
            if not osp.exists(named) or not osp.samefile(path, named):
                problems.append(str(error).splitlines()[0])
    for _, _, path in sorted(found, reverse=True):
        broken = check_archive(path)
        if broken is None:
            return path, problems
        if path != named:
            problems.append(f'{path}: {broken}')
    if named == '' and len(problems) == 1:
        return None, problems  # a run that ended before its first save
    listed = '\n  '.join(problems)
    raise ValueError(
        f'there is no checkpoint to resume from in {", ".join(places)}:\n  {listed}\n'
        'name another one (--resume PATH, or load_from), or start anew in another work_dir'
    )


def _reason(named: str, marker: str) -> str | None:
    """Why the checkpoint that the marker names is not to be used."""
    if not named:
        return f'{marker} is empty'
    if not osp.isfile(named):
        return f'{marker} names {named}, which does not exist'
    broken = check_archive(named)
    return None if broken is None else f'{named}: {broken}'


def _checkpoints(folders: Iterable[str]) -> list[str]:
    return [
        osp.join(folder, name)
        for folder in folders
        for name in sorted(os.listdir(folder))
        if name.endswith('.pth') and not NO_RESUME.match(name)
    ]


def _iterations(path: str) -> int:
    """How far a checkpoint is; only its table of contents is read."""
    meta: Any = load_from_local(path, 'cpu', mmap=True, check=False).get('meta')
    if not isinstance(meta, dict) or not isinstance(meta.get('iter'), int):
        raise ValueError(f'{path}: it holds no state of a training (meta.iter)')
    return meta['iter']
