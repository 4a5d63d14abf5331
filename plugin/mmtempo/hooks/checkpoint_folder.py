"""Where checkpoints go: whether we can write there, whether there is room, what is whole."""

from __future__ import annotations

import os
import os.path as osp
from typing import Any

from mmengine.dist import barrier, broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ..core.disk_space import remove_leftovers, shortage
from ..core.writer_process import replace_durably
from ..resume import MARKER, newest_whole
from .checkpoint_content import optimizers_of, unwrapped


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


def mend_marker(runner: Any, folder: str) -> None:
    """Where `resume=True` would take a broken checkpoint, let it take the newest whole one.

    The runner reads nothing but the marker; so it is the marker that is mended.
    """
    if not runner._resume or runner._load_from is not None:
        return
    outcome: list[Any] = [None]
    if is_main_process():
        try:
            path, problems = newest_whole(runner.work_dir, [folder])
            for problem in problems:
                runner.logger.warning(f'Not resumed from: {problem}')
            marker = osp.join(runner.work_dir, MARKER)
            if problems and path is not None:
                runner.logger.warning(f'{marker} names {path} from now on.')
                replace_durably(marker, lambda file: file.write(path.encode()))
            elif problems:
                os.remove(marker)  # it is empty, and there is nothing it could name
        except ValueError as error:
            outcome = [str(error)]
        except OSError as error:  # the other processes wait to hear of it
            outcome = [f'{MARKER} in {runner.work_dir} cannot be mended: {error}']
    broadcast_object_list(outcome)
    if outcome[0] is not None:
        raise ValueError(outcome[0])
    barrier()


def prepare(runner: Any, hook: Any) -> None:
    """Make the folder, clear what a crash has left, and say whether there is room."""
    # Once, and not at each save: a mount that vanishes must not become a folder.
    of_names = osp.dirname(osp.join(hook.out_dir, hook.filename_tmpl))
    os.makedirs(of_names, exist_ok=True)
    for folder in {of_names, hook.out_dir, runner.work_dir}:
        removed = remove_leftovers(folder)
        if removed:
            runner.logger.info(
                f'Removed from {folder} what an interrupted save had left: {", ".join(removed)}.'
            )
    size = expected_size(runner, hook.save_optimizer)
    files = _number_of_files(runner, hook)
    missing = shortage(hook.out_dir, size, files)
    if missing:
        runner.logger.warning(
            f'{hook.out_dir}: {files} checkpoints of about {size / 1e6:.0f} MB do not fit, '
            f'{missing / 1e6:.0f} MB are missing. Free some, or set '
            'default_hooks.checkpoint.max_keep_ckpts or out_dir.'
        )


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
