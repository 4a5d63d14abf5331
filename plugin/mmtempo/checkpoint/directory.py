"""Where checkpoints go: whether we can write there, whether there is room, what is whole."""

from __future__ import annotations

import contextlib
import os
import os.path as osp
import re
from collections.abc import Callable
from typing import Any

from mmengine.dist import barrier, broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.model import is_model_wrapper
from mmengine.runner import BaseLoop, Runner
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mmtempo.checkpoint.io.disk_space import remove_leftovers, shortage
from mmtempo.checkpoint.io.writer_process import remove, replace_durably
from mmtempo.system.folder_lock import FolderLock
from mmtempo.utils.runner import optimizers_of, unwrapped

from .resume import MARKER, is_elsewhere, kept_steps, newest_whole


def why_stock(runner: Any, backend: Any) -> str | None:
    """Why checkpoints cannot be saved in our way; None where they can."""
    if getattr(type(runner), 'save_checkpoint', None) is not Runner.save_checkpoint:
        return f'{type(runner).__name__} saves in a way of its own'
    model = runner.model
    if is_model_wrapper(model) and not isinstance(model, (DistributedDataParallel, DataParallel)):
        return f'{type(model).__name__} may hold no more than a part of the model'
    for optimizer in optimizers_of(runner):
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            return f'{type(optimizer).__name__} holds a part of its state only'
        if not hasattr(optimizer, 'register_step_pre_hook'):
            return f'{type(optimizer).__name__} does not say when it changes the parameters'
    if not isinstance(backend, LocalBackend):
        return f'the folder is reached through {type(backend).__name__}'
    return None


def resolved(runner: Any, out_dir: Any) -> str:
    """The folder of the checkpoints, as stock will have it."""
    if out_dir is None or str(out_dir) == runner.work_dir:
        return runner.work_dir
    return osp.join(str(out_dir), osp.basename(runner.work_dir.rstrip(osp.sep)))


def is_about_to_train(runner: Any) -> bool:
    """Whether `before_run` is that of a training, and not of an evaluation or a test."""
    loop = getattr(runner, '_train_loop', None)  # the property would build it
    return isinstance(loop, BaseLoop) and getattr(loop, 'iter', 0) < getattr(loop, 'max_iters', 1)


def lock(runner: Any, hook: Any, out_dir: Any) -> FolderLock:
    """Lock the folders that a training writes into; of no folders except in the main process."""
    folders = [runner.work_dir]
    if '://' not in str(out_dir) and hook.backend_args is None:
        folders.append(resolved(runner, out_dir))
    locks = [FolderLock([])]

    def take() -> None:
        locks[0] = FolderLock(folders)
        for problem in locks[0].problems:
            runner.logger.warning(problem)

    _in_main_process(take)
    return locks[0]


def repair_marker(runner: Any, folder: str) -> None:
    """Have `resume=True` take the newest whole checkpoint instead of a broken one.

    The runner reads nothing but the marker, so the marker is rewritten.
    """
    if not runner._resume or runner._load_from is not None:
        return
    marker = osp.join(runner.work_dir, MARKER)
    takes_folders = type(runner).save_checkpoint is not Runner.save_checkpoint

    def repair() -> None:
        hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
        out_dirs = [getattr(hook, '_asked_dir', hook.out_dir) for hook in hooks]
        folders = [runner.work_dir, folder, *(resolved(runner, one) for one in out_dirs)]
        path, problems = newest_whole(runner.work_dir, folders, takes_folders)
        for problem in problems:
            runner.logger.warning(f'Not resumed from: {problem}')
        if path is not None and problems:
            runner.logger.warning(f'{marker} names {path} from now on.')
            replace_durably(marker, lambda file: file.write(path.encode()))
        elif path is not None and is_elsewhere(path, folders):
            runner.logger.warning(
                f'{marker} names {path}, which is in another folder than the checkpoints of this '
                f'training ({folder}). To resume from another one, name it (--resume PATH).'
            )
        elif path is None and osp.isfile(marker):
            os.remove(marker)  # it is empty, and there is nothing it could name

    _in_main_process(repair)
    barrier()


def _in_main_process(action: Callable[[], None]) -> None:
    """Call it in the main process; raise its error in all, which wait for its end."""
    outcome: list[Any] = [None]
    if is_main_process():
        try:
            action()
        except (ValueError, OSError) as error:
            outcome = [error]
    broadcast_object_list(outcome)
    if outcome[0] is not None:
        raise outcome[0]


def prefer_own_best(hook: Any) -> None:
    """In a copied work dir, let the next best replace the copy, and not the original's file."""
    if getattr(hook, 'best_ckpt_path', None):
        hook.best_ckpt_path = _own(hook.best_ckpt_path, hook.out_dir)
    for key, path in list(getattr(hook, 'best_ckpt_path_dict', {}).items()):
        hook.best_ckpt_path_dict[key] = path and _own(path, hook.out_dir)


def _own(path: str, folder: str) -> str:
    own = osp.join(folder, osp.basename(path))
    return own if is_elsewhere(path, [folder]) and osp.isfile(own) else path


def prepare(runner: Any, hook: Any) -> None:
    """Make the folder, clear what a crash has left, and say whether there is room."""
    # Once, and not at each save: a mount that vanishes must not become a folder.
    # A folder that is named by a number is made at its save.
    fixed = hook.filename_tmpl.partition('{')[0]
    of_names = osp.dirname(osp.join(hook.out_dir, fixed))
    os.makedirs(of_names, exist_ok=True)
    for folder in {of_names, hook.out_dir, runner.work_dir}:
        removed = remove_leftovers(folder)
        if removed:
            runner.logger.info(
                f'Removed from {folder} what an interrupted save had left: {", ".join(removed)}.'
            )
    there = _steps(hook)
    _warn_of_earlier(runner, hook, there)
    _remove_replaced(runner, hook, there)
    size = expected_size(runner, hook.save_optimizer)
    files = _number_of_files(runner, hook)
    missing = shortage(hook.out_dir, size, files)
    if missing:
        runner.logger.warning(
            f'{hook.out_dir}: {files} checkpoints of about {size / 1e6:.0f} MB do not fit, '
            f'{missing / 1e6:.0f} MB are missing. Free some, or set '
            'default_hooks.checkpoint.max_keep_ckpts or out_dir.'
        )


def _warn_of_earlier(runner: Any, hook: Any, there: dict[int, str]) -> None:
    """Name the checkpoints that a training which starts anew is going to replace."""
    if runner.iter or not there:
        return
    names = [osp.basename(path) for _, path in sorted(there.items())]
    shown = ', '.join(names if len(names) < 5 else [*names[:2], '...', names[-1]])
    runner.logger.warning(
        f'{hook.out_dir}: {len(names)} checkpoint(s) of an earlier training ({shown}) are there, '
        'and this one, which starts anew, replaces those of the same name; resume=True (--resume) '
        'continues the earlier one, and another work_dir (--work-dir) keeps its files.'
    )


def _remove_replaced(runner: Any, hook: Any, there: dict[int, str]) -> None:
    """Remove checkpoints that retention had chosen when a kill came before their removal.

    Such a file is older than all that are kept, and was itself saved under retention. What was
    saved without it, copied or renamed stays.
    """
    kept = list(getattr(hook, 'keep_ckpt_ids', ()))
    # The message hub has one list, that of the last hook that saved.
    is_shared = sum(isinstance(other, CheckpointHook) for other in runner.hooks) > 1
    if is_shared or not there.keys() >= set(kept):
        return
    for step, path in there.items():
        with contextlib.suppress(ValueError, OSError):  # unreadable, or of another user
            if kept and step < min(kept) and kept_steps(path)[-1:] == [step]:
                remove(path)
                runner.logger.info(
                    f'Removed {path}, which an interrupted save had left above '
                    f'max_keep_ckpts={hook.max_keep_ckpts}.'
                )


def _steps(hook: Any) -> dict[int, str]:
    """Return the files that are named as the hook names its own, by their number."""
    folder, template = osp.split(osp.join(hook.out_dir, hook.filename_tmpl))
    parts = re.split(r'\{[^}]*\}', template, maxsplit=1)
    if len(parts) == 1:  # one name, or a folder for each number
        return {}
    begin, end = map(re.escape, parts)
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(rf'{begin}(\d+){end}', name)
        if match and template.format(int(match[1])) == name:
            found[int(match[1])] = osp.join(folder, name)
    return found


def expected_size(runner: Any, with_optimizer: bool) -> int:
    """Bytes of a checkpoint, about: an optimizer that has not stepped yet has no state."""
    size = sum(tensor.nbytes for tensor in unwrapped(runner.model).state_dict().values())
    if not with_optimizer:
        return size
    for optimizer in optimizers_of(runner):
        for group in optimizer.param_groups:
            averages = 2 if 'betas' in group else int(bool(group.get('momentum')))
            size += averages * sum(parameter.nbytes for parameter in group['params'])
    return size


def _number_of_files(runner: Any, hook: Any) -> int:
    """How many more there will be at once: those that are kept, and one that is being written."""
    there = sum(name.endswith('.pth') for name in os.listdir(hook.out_dir))
    best = len(hook.save_best or ())
    if hook.max_keep_ckpts > 0:
        return max(1, hook.max_keep_ckpts + best + 1 - there)
    done, total = (
        (runner.epoch, runner.max_epochs) if hook.by_epoch else (runner.iter, runner.max_iters)
    )
    return best + (total - done) // hook.interval if hook.interval > 0 else best + 1
