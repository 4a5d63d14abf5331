"""What of a training decides how fast it can be: for reports, and to find periods in stalls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook, LoggerHook

from mmtempo.system.machine import processes_here


def setting_of(runner: Any) -> dict[str, Any]:
    """What is not known is None."""
    loop, loader = runner.train_loop, runner.train_dataloader
    by_epoch = hasattr(loop, 'run_epoch')
    length = length_of(loader)
    batch = getattr(loader, 'batch_size', None)
    batch = batch or getattr(getattr(loader, 'batch_sampler', None), 'batch_size', None)
    accumulation = accumulation_of(runner.optim_wrapper)
    world = get_world_size()
    unit = (length or 1) if by_epoch else 1
    evaluates = runner.val_loop is not None
    loops = [loop, runner.val_loop] if evaluates else [loop]
    return dict(
        loop=type(loop).__name__,
        train_cfg_has_type='type' in _mapping(runner.cfg.get('train_cfg')),
        by_epoch=by_epoch,
        epoch_length=length,
        num_workers=getattr(loader, 'num_workers', None),
        prefetch_factor=getattr(loader, 'prefetch_factor', None),
        pin_memory=getattr(loader, 'pin_memory', None),
        cache=hasattr(getattr(loader, 'dataset', None), 'stats'),
        batch_size=batch,
        world=world,
        local_world=processes_here(world),
        accumulation=accumulation,
        effective_batch=batch * world * accumulation if batch else None,
        max_iters=runner.max_iters,
        log_interval=_first(hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)),
        val_interval=loop.val_interval * unit if evaluates else None,
        **_checkpoints(runner.hooks, by_epoch, length),
        config=runner.cfg.filename,
        default_hooks=_named_hooks(runner.cfg),
        parts=[type(part).__name__ for part in (*loops, runner.optim_wrapper, *runner.hooks)],
    )


def _checkpoints(hooks: Any, by_epoch: bool, length: int | None) -> dict[str, Any]:
    """The interval in iterations, and whether the hook counts epochs, whatever the loop does."""
    hook = _first(one for one in hooks if isinstance(one, CheckpointHook) and one.interval > 0)
    if hook is None:
        return dict(checkpoint_interval=None, checkpoint_by_epoch=None)
    unit: int | None = 1
    if hook.by_epoch:  # one that counts epochs of a loop without any saves at the end only
        unit = length if by_epoch else None
    interval = None if unit is None else hook.interval * unit
    return dict(checkpoint_interval=interval, checkpoint_by_epoch=hook.by_epoch)


def _named_hooks(cfg: Any) -> dict[str, str | None]:
    """Of the config's `default_hooks`, the class of each key; what mmengine adds is not there."""
    found: dict[str, str | None] = {}
    for key, hook in _mapping(cfg.get('default_hooks')).items():
        kind = hook.get('type') if isinstance(hook, Mapping) else hook
        if isinstance(kind, str):
            found[key] = kind.rpartition('.')[2]
        elif kind is None:
            found[key] = None
        else:
            found[key] = (kind if isinstance(kind, type) else type(kind)).__name__
    return found


def accumulation_of(wrapper: Any) -> int:
    """Iterations to an update."""
    wrappers = wrapper.values() if hasattr(wrapper, 'optim_wrappers') else [wrapper]
    return max(getattr(one, '_accumulative_counts', 1) for one in wrappers)


def shape_of(batch: Any) -> tuple | None:
    """Of the inputs of a batch; cheap enough for each iteration."""
    inputs = batch.get('inputs') if isinstance(batch, dict) else None
    if isinstance(inputs, (list, tuple)):
        return (len(inputs), *getattr(inputs[0], 'shape', ())) if inputs else (0,)
    shape = getattr(inputs, 'shape', None)
    return None if shape is None else tuple(shape)


def files_of(batch: Any) -> list[str]:
    """What the samples of a batch were made of, where they say so."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    found = (getattr(sample, 'img_path', None) for sample in samples or ())
    return [str(path) for path in itertools.islice(filter(None, found), 16)]


def _mapping(part: Any) -> Mapping[str, Any]:
    """A part of a config, which may be built already."""
    return part if isinstance(part, Mapping) else {}


def length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _first(values: Any) -> Any:
    return next(iter(values), None)
