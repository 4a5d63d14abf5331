"""Find the newest whole checkpoint."""

from __future__ import annotations

import os
import os.path as osp
from collections.abc import Iterable
from typing import Any

from mmengine.config import Config

from mmtempo.checkpoint.io.archive import check_archive

from .loading import load_from_local

MARKER = 'last_checkpoint'
# A checkpoint within an epoch; the names of the others count completed epochs or iterations.
INTERRUPTED = 'interrupted.pth'
BEST = 'best_'  # prefix of the best checkpoints, which have no optimizer


def newest_whole(
    work_dir: str, folders: Iterable[str] = (), takes_folders: bool = False
) -> tuple[str | None, list[str]]:
    """Return the checkpoint to resume from, and the reasons why better candidates are skipped.

    =======================================  ==================================================
    marker `last_checkpoint`                 checkpoint
    =======================================  ==================================================
    names a whole file here                  that file
    names a file elsewhere, and a file of    the file here: the work dir was copied or moved
    the same name is here
    names a whole file elsewhere             that file, as in a run with another `out_dir`
    is missing or empty, or names a broken   the whole file with the most iterations here and in
    or missing file, or a folder             the folder of the named file
    =======================================  ==================================================

    "Here" means in `work_dir` or in `folders`.

    Args:
        work_dir: Folder of the marker.
        folders: Other folders with checkpoints of this training. Defaults to ().
        takes_folders: Whether a checkpoint may be a folder, as saved by DeepSpeed.
            Defaults to False.

    Returns:
        Path and reasons; the path is None if the training starts from the beginning.

    Raises:
        ValueError: There are checkpoints, and all of them are broken.
    """
    marker = osp.join(work_dir, MARKER)
    places = list(dict.fromkeys(map(osp.abspath, [work_dir, *folders])))
    named = _named_by(marker)
    if named is not None and ('://' in named or (takes_folders and osp.isdir(named))):
        return named, []  # not a local file
    first = None
    if named is None:
        reason = f'{marker}, which does not exist'
    elif is_elsewhere(named, places) and (first := _same_name(named, places)) is not None:
        exists = '' if osp.exists(named) else ', which does not exist'
        reason = f'{marker} names {named}{exists}; the file of this name in this folder is {first}'
    else:
        found = _reason(named, marker)
        if found is None:
            return named, []
        reason = found
        if not osp.isdir(named):
            places = list(dict.fromkeys([osp.abspath(osp.dirname(named) or work_dir), *places]))
    problems = [reason]
    path = _newest_of_whole(places, first, None if first else named, problems)
    if path is not None:
        return path, problems
    if named is None:
        return None, problems[1:]  # at most the first save, killed before it wrote the marker
    if named == '' and len(problems) == 1:
        return None, problems  # a run that ended before its first save
    listed = '\n  '.join(problems)
    raise ValueError(
        f'no checkpoint to resume from in {", ".join(places)}:\n  {listed}\n'
        'use another one (--resume PATH, or load_from), or start a new run in another work_dir'
    )


def is_elsewhere(path: str, folders: Iterable[str]) -> bool:
    """Return whether a local file is outside of all the folders."""
    if '://' in path or not osp.dirname(path):
        return False
    return osp.realpath(osp.dirname(path)) not in map(osp.realpath, folders)


def newest_of(cfg: Any) -> tuple[str | None, list[str]]:
    """Return `newest_whole` for the folders of the checkpoints of a config."""
    takes_folders = cfg.get('runner_type', 'Runner') != 'Runner'
    return newest_whole(cfg.work_dir, out_dirs_of(cfg), takes_folders)


def out_dirs_of(cfg: Any) -> list[str]:
    """Return the local folders of checkpoints of a config, except for the work dir."""
    default = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    hooks = [default, *(hook for hook in cfg.get('custom_hooks') or () if isinstance(hook, dict))]
    name = osp.basename(osp.abspath(cfg.work_dir))
    return [
        osp.join(str(hook['out_dir']), name)
        for hook in hooks
        if (hook is default or str(hook.get('type')).endswith('CheckpointHook'))
        and hook.get('out_dir')
        and '://' not in str(hook['out_dir'])
        and hook.get('backend_args') is None
    ]


def how_to_go_on(cfg: Any) -> str:
    """Return how to resume an interrupted training, as the end of a sentence, or ''."""
    try:
        newest, _ = newest_of(cfg) if isinstance(cfg, Config) else (None, [])
    except ValueError:
        return ''  # no whole checkpoint; --resume lists the reasons
    if newest is None:
        return ''
    return f'; newest checkpoint: {newest}\nto resume from it, add --resume to the same command'


def kept_steps(path: str) -> list[int]:
    """Return the steps whose checkpoints `max_keep_ckpts` kept when this one was saved."""
    hub = _content(path).get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    steps = info.get('keep_ckpt_ids') if isinstance(info, dict) else None
    return list(steps) if isinstance(steps, (list, tuple)) else []


def _named_by(marker: str) -> str | None:
    if not osp.isfile(marker):
        return None
    with open(marker, encoding='utf-8', errors='replace') as file:
        return file.read().strip()


def _same_name(named: str, places: list[str]) -> str | None:
    found = (osp.join(place, osp.basename(named)) for place in places)
    return next((path for path in found if osp.isfile(path)), None)


def _newest_of_whole(
    places: list[str], first: str | None, skipped: str | None, problems: list[str]
) -> str | None:
    """Return `first` if it is whole, else the whole file with the most iterations.

    Args:
        places: Folders to search.
        first: File that takes precedence.
        skipped: File that was rejected before.
        problems: List that receives the reasons why files are skipped.
    """
    found = []
    for path in _checkpoints(place for place in places if osp.isdir(place)):
        if skipped and osp.isfile(skipped) and osp.samefile(path, skipped):
            continue
        try:
            iterations = _iterations(path)
            if iterations is not None:
                found.append((path == first, iterations, osp.getmtime(path), path))
        except (ValueError, OSError) as error:
            broken = check_archive(path)
            problems.append(f'{path}: {broken}' if broken else str(error).splitlines()[0])
    for _, _, _, path in sorted(found, reverse=True):
        broken = check_archive(path)
        if broken is None:
            return path
        problems.append(f'{path}: {broken}')
    return None


def _reason(named: str, marker: str) -> str | None:
    """Return why the checkpoint that the marker names cannot be used, or None."""
    if not named:
        return f'{marker} is empty'
    if osp.isdir(named):
        return f'{marker} names {named}, which is a folder'
    if not osp.isfile(named):
        return f'{marker} names {named}, which does not exist'
    broken = check_archive(named)
    if broken is not None:
        return f'{named}: {broken}'
    try:
        is_training = _iterations(named) is not None
    except ValueError as error:  # it is whole, but refused: it may run code
        return str(error).replace('\n', '. ')
    return None if is_training else f'{named}: it has no training state (message_hub, meta.iter)'


def _checkpoints(folders: Iterable[str]) -> list[str]:
    return [
        osp.join(folder, name)
        for folder in folders
        for name in sorted(os.listdir(folder))
        if name.endswith('.pth') and not name.startswith(BEST)
    ]


def _iterations(path: str) -> int | None:
    """Return the completed iterations, or None for a file without them, as a published one."""
    content = _content(path)
    if 'message_hub' not in content:
        return None
    meta = content.get('meta')
    iterations = meta.get('iter') if isinstance(meta, dict) else None
    return iterations if isinstance(iterations, int) else None


def _content(path: str) -> dict:
    """Load a file without reading its tensors; return {} if it is no checkpoint."""
    content: Any = load_from_local(path, 'cpu', mmap=True, check=False)
    return content if isinstance(content, dict) else {}
