"""Finds the newest checkpoint that is whole."""

from __future__ import annotations

import os
import os.path as osp
from collections.abc import Iterable
from typing import Any

from mmengine.config import Config

from .core.archive import check_archive
from .serialization import load_from_local

MARKER = 'last_checkpoint'
BEST = 'best_'  # begins the names of those that have no optimizer


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
        # A folder, as DeepSpeed saves, or a file elsewhere: not ours to judge.
        if osp.isdir(named) or '://' in named:
            return named, []
        reason = _reason(named, marker)
        if reason is None:
            return named, []
        problems = [reason]
    else:
        return None, []
    places = dict.fromkeys(map(osp.abspath, [osp.dirname(named) or work_dir, work_dir, *folders]))
    found = []
    for path in _checkpoints(place for place in places if osp.isdir(place)):
        if osp.isfile(named) and osp.samefile(path, named):
            continue
        try:
            iterations = _iterations(path)
            if iterations is not None:
                found.append((iterations, osp.getmtime(path), path))
        except (ValueError, OSError) as error:
            broken = check_archive(path)
            problems.append(f'{path}: {broken}' if broken else str(error).splitlines()[0])
    for _, _, path in sorted(found, reverse=True):
        broken = check_archive(path)
        if broken is None:
            return path, problems
        problems.append(f'{path}: {broken}')
    if named == '' and len(problems) == 1:
        return None, problems  # a run that ended before its first save
    listed = '\n  '.join(problems)
    raise ValueError(
        f'there is no checkpoint to resume from in {", ".join(places)}:\n  {listed}\n'
        'name another one (--resume PATH, or load_from), or start anew in another work_dir'
    )


def newest_of(cfg: Any) -> tuple[str | None, list[str]]:
    """As `newest_whole`, where a config puts its checkpoints."""
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    out_dir, name = hook.get('out_dir'), osp.basename(cfg.work_dir.rstrip(osp.sep))
    return newest_whole(cfg.work_dir, [osp.join(out_dir, name)] if out_dir else [])


def how_to_go_on(cfg: Any) -> str:
    """Where an interrupted training can be taken up again; nothing where it cannot."""
    try:
        newest, _ = newest_of(cfg) if isinstance(cfg, Config) else (None, [])
    except ValueError:
        return ''  # none of them is whole; --resume says so, one by one
    if newest is None:
        return ''
    return f'; newest checkpoint: {newest}\ngo on from it with the same command and --resume'


def _reason(named: str, marker: str) -> str | None:
    """Why the checkpoint that the marker names is not to be used."""
    if not named:
        return f'{marker} is empty'
    if not osp.isfile(named):
        return f'{marker} names {named}, which does not exist'
    broken = check_archive(named)
    if broken is not None:
        return f'{named}: {broken}'
    try:
        is_training = _iterations(named) is not None
    except ValueError as error:  # it is whole, but not what we read: it may run code
        return str(error).replace('\n', '. ')
    return None if is_training else f'{named}: it holds no state of a training'


def _checkpoints(folders: Iterable[str]) -> list[str]:
    return [
        osp.join(folder, name)
        for folder in folders
        for name in sorted(os.listdir(folder))
        if name.endswith('.pth') and not name.startswith(BEST)
    ]


def _iterations(path: str) -> int | None:
    """How far a training was; None where the file holds none, as one that was published.

    Only the file's table of contents is read.
    """
    content: Any = load_from_local(path, 'cpu', mmap=True, check=False)
    if not isinstance(content, dict) or 'message_hub' not in content:
        return None
    meta = content.get('meta')
    iterations = meta.get('iter') if isinstance(meta, dict) else None
    return iterations if isinstance(iterations, int) else None
