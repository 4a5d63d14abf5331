"""Prepare the folder of checkpoints: lock, disk space, leftovers and the file to resume from."""

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
from mmtempo.utils.units import counted, size

from .resume import MARKER, is_elsewhere, kept_steps, newest_whole


def why_stock(runner: Any, backend: Any) -> str | None:
    """Return why only `CheckpointHook` can save these checkpoints, or None.

    Args:
        runner: Runner of the training.
        backend: File backend of the folder of checkpoints.
    """
    if getattr(type(runner), 'save_checkpoint', None) is not Runner.save_checkpoint:
        return f'{type(runner).__name__} does not save with Runner.save_checkpoint'
    model = runner.model
    if is_model_wrapper(model) and not isinstance(model, (DistributedDataParallel, DataParallel)):
        return f'{type(model).__name__} may hold only a part of the model'
    for optimizer in optimizers_of(runner):
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            return f'{type(optimizer).__name__} holds only a part of its state'
        if not hasattr(optimizer, 'register_step_pre_hook'):
            return f'{type(optimizer).__name__} has no register_step_pre_hook'
    if not isinstance(backend, LocalBackend):
        return f'the folder is not local (file backend {type(backend).__name__})'
    return None


def resolved(runner: Any, out_dir: Any) -> str:
    """Return the folder of the checkpoints, as stock derives it from `out_dir`."""
    if out_dir is None or str(out_dir) == runner.work_dir:
        return runner.work_dir
    return osp.join(str(out_dir), osp.basename(runner.work_dir.rstrip(osp.sep)))


def is_about_to_train(runner: Any) -> bool:
    """Return whether `before_run` belongs to a training, not to an evaluation or a test."""
    loop = getattr(runner, '_train_loop', None)  # the property would build the loop
    return isinstance(loop, BaseLoop) and getattr(loop, 'iter', 0) < getattr(loop, 'max_iters', 1)


def lock(runner: Any, hook: Any, out_dir: Any) -> FolderLock:
    """Lock the folders that a training writes to, in the main process.

    Returns:
        The lock; in the other processes one without folders.
    """
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
    """Make `resume=True` load the newest whole checkpoint instead of a broken one.

    The runner only reads the marker `last_checkpoint`, so the marker is rewritten.

    Args:
        runner: Runner of the training.
        folder: Folder of the checkpoints.
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
            runner.logger.warning(f'Checkpoint skipped on resume: {problem}')
        if path is not None and problems:
            runner.logger.warning(f'{marker}: rewritten to name {path}.')
            replace_durably(marker, lambda file: file.write(path.encode()))
        elif path is not None and is_elsewhere(path, folders):
            runner.logger.warning(
                f'{marker}: {path} is in another folder than the checkpoints of this training '
                f'({folder}); to resume from another file, use --resume PATH.'
            )
        elif path is None and osp.isfile(marker):
            os.remove(marker)  # it is empty, and there is no checkpoint to name

    _in_main_process(repair)
    barrier()


def _in_main_process(action: Callable[[], None]) -> None:
    """Call a function in the main process; all processes wait for it and raise its error."""
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
    """In a copied work dir, let the next best checkpoint replace the copied file.

    A checkpoint names the best file by its absolute path. In a copy that is the file of the
    original, which the next best checkpoint would remove.
    """
    if getattr(hook, 'best_ckpt_path', None):
        hook.best_ckpt_path = _own(hook.best_ckpt_path, hook.out_dir)
    for key, path in list(getattr(hook, 'best_ckpt_path_dict', {}).items()):
        hook.best_ckpt_path_dict[key] = path and _own(path, hook.out_dir)


def _own(path: str, folder: str) -> str:
    own = osp.join(folder, osp.basename(path))
    return own if is_elsewhere(path, [folder]) and osp.isfile(own) else path


def _folder_of_names(hook: Any) -> str:
    return osp.dirname(osp.join(hook.out_dir, hook.filename_tmpl.partition('{')[0]))


def clean(runner: Any, hook: Any) -> None:
    """Remove leftovers of killed writers.

    A writer that is blocked by its disk outlives its kill and keeps its file until it ends, so
    this is repeated at the end of a training.
    """
    for folder in filter(osp.isdir, {_folder_of_names(hook), hook.out_dir, runner.work_dir}):
        removed = remove_leftovers(folder)
        if removed:
            runner.logger.info(
                f'{folder}: removed leftovers of an interrupted save: {", ".join(removed)}.'
            )


def prepare(runner: Any, hook: Any) -> None:
    """Create the folder, remove leftovers of a crash, and warn if disk space is too small."""
    # Once, not at each save: an unmounted drive must not be replaced by a new folder. A folder
    # whose name contains the number of the save is created at that save.
    os.makedirs(_folder_of_names(hook), exist_ok=True)
    clean(runner, hook)
    existing = _steps(hook)
    _warn_of_earlier(runner, hook, existing)
    _remove_replaced(runner, hook, existing)
    bytes_of_one = expected_size(runner, hook.save_optimizer)
    files = _number_of_files(runner, hook)
    missing = shortage(hook.out_dir, bytes_of_one, files)
    if missing:
        runner.logger.warning(
            f'{hook.out_dir}: {counted(files, "checkpoint")} of about {size(bytes_of_one)} exceed '
            f'the free disk space by {size(missing)}; free some, or set '
            'default_hooks.checkpoint.max_keep_ckpts or out_dir.'
        )


def _warn_of_earlier(runner: Any, hook: Any, existing: dict[int, str]) -> None:
    """Warn about checkpoints that a training from the start will replace."""
    if runner.iter or not existing:
        return
    names = [osp.basename(path) for _, path in sorted(existing.items())]
    shown = ', '.join(names if len(names) < 5 else [*names[:2], '...', names[-1]])
    runner.logger.warning(
        f'{hook.out_dir}: found {counted(len(names), "checkpoint")} of an earlier training '
        f'({shown}); this training starts from the beginning and replaces files of the same name. '
        'Use resume=True (--resume) to continue, or another work_dir (--work-dir) to keep them.'
    )


def _remove_replaced(runner: Any, hook: Any, existing: dict[int, str]) -> None:
    """Remove checkpoints that `max_keep_ckpts` had selected when a kill prevented their removal.

    Such a file is older than all that are kept, and was itself saved with `max_keep_ckpts`. Files
    that were saved without it, copied or renamed are kept.
    """
    kept = list(getattr(hook, 'keep_ckpt_ids', ()))
    # The message hub has a single list, that of the last hook that saved.
    is_shared = sum(isinstance(other, CheckpointHook) for other in runner.hooks) > 1
    if is_shared or not existing.keys() >= set(kept):
        return
    for step, path in existing.items():
        with contextlib.suppress(ValueError, OSError):  # unreadable, or of another user
            if kept and step < min(kept) and kept_steps(path)[-1:] == [step]:
                remove(path)
                runner.logger.info(
                    f'{path}: removed, since an interrupted save left more than '
                    f'max_keep_ckpts={hook.max_keep_ckpts}.'
                )


def _steps(hook: Any) -> dict[int, str]:
    """Return the files that match the hook's `filename_tmpl`, by their number."""
    folder, template = osp.split(osp.join(hook.out_dir, hook.filename_tmpl))
    parts = re.split(r'\{[^}]*\}', template, maxsplit=1)
    if len(parts) == 1:  # a fixed name, or a folder for each number
        return {}
    begin, end = map(re.escape, parts)
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(rf'{begin}(\d+){end}', name)
        if match and template.format(int(match[1])) == name:
            found[int(match[1])] = osp.join(folder, name)
    return found


def expected_size(runner: Any, with_optimizer: bool) -> int:
    """Return the approximate bytes of a checkpoint, also before the optimizer has a state."""
    number = sum(tensor.nbytes for tensor in unwrapped(runner.model).state_dict().values())
    if not with_optimizer:
        return number
    for optimizer in optimizers_of(runner):
        for group in optimizer.param_groups:
            averages = 2 if 'betas' in group else int(bool(group.get('momentum')))
            number += averages * sum(parameter.nbytes for parameter in group['params'])
    return number


def _number_of_files(runner: Any, hook: Any) -> int:
    """Return how many more files will exist at a time: the kept ones and one being written."""
    existing = sum(name.endswith('.pth') for name in os.listdir(hook.out_dir))
    best = len(hook.save_best or ())
    if hook.max_keep_ckpts > 0:
        return max(1, hook.max_keep_ckpts + best + 1 - existing)
    done, total = (
        (runner.epoch, runner.max_epochs) if hook.by_epoch else (runner.iter, runner.max_iters)
    )
    return best + (total - done) // hook.interval if hook.interval > 0 else best + 1
