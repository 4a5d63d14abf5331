"""Settings of a training that determine its speed, for reports and to find periods in stalls."""

from __future__ import annotations

import contextlib
import itertools
import os.path as osp
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.dist import get_world_size
from mmengine.hooks import CheckpointHook, LoggerHook
from torch.nn.parameter import is_lazy

from mmtempo.datasets import CachedDataset
from mmtempo.system.machine import processes_here
from mmtempo.utils.runner import unwrapped, wrappers_of

from .hook_timer import HookEdge

MOST_WRAPPERS = 16  # of a data set within another


def setting_of(runner: Any) -> dict[str, Any]:
    """Return the settings of a training; unknown ones are None."""
    loop, loader = runner.train_loop, runner.train_dataloader
    by_epoch = hasattr(loop, 'run_epoch')
    length = length_of(loader)
    batch = getattr(loader, 'batch_size', None)
    batch = batch or getattr(getattr(loader, 'batch_sampler', None), 'batch_size', None)
    accumulation = batches_per_update(runner)
    world = get_world_size()
    unit = (length or 1) if by_epoch else 1
    evaluates = runner.val_loop is not None
    loops = [loop, runner.val_loop] if evaluates else [loop]
    hooks = [hook for hook in runner.hooks if not isinstance(hook, HookEdge)]
    model = unwrapped(runner.model)
    return dict(
        model=type(model).__name__,
        parameters=sum(one.numel() for one in model.parameters() if not is_lazy(one)),
        loop=type(loop).__name__,
        train_cfg_has_type='type' in _mapping(runner.cfg.get('train_cfg')),
        by_epoch=by_epoch,
        epoch_length=length,
        num_workers=getattr(loader, 'num_workers', None),
        prefetch_factor=getattr(loader, 'prefetch_factor', None),
        pin_memory=getattr(loader, 'pin_memory', None),
        persistent_workers=getattr(loader, 'persistent_workers', None),
        **_data(getattr(loader, 'dataset', None)),
        batch_size=batch,
        world=world,
        local_world=processes_here(world),
        accumulation=accumulation,
        effective_batch=batch * world * accumulation if batch else None,
        max_iters=runner.max_iters,
        log_interval=_first(hook.interval for hook in hooks if isinstance(hook, LoggerHook)),
        val_interval=loop.val_interval * unit if evaluates else None,
        **_checkpoints(hooks, by_epoch, length),
        compile_dynamic=_mapping(runner.cfg.get('compile')).get('dynamic'),
        config=runner.cfg.filename,
        default_hooks=_named_hooks(runner.cfg),
        parts=[type(part).__name__ for part in (*loops, runner.optim_wrapper, *hooks)],
    )


def datasets_of(dataset: Any) -> Iterator[Any]:
    """Yield a data set and those within its wrappers; of several, the first."""
    for _ in range(MOST_WRAPPERS):
        if dataset is None:
            return
        yield dataset
        inner = getattr(dataset, 'datasets', None)
        if isinstance(inner, (list, tuple)) and inner:
            dataset = inner[0]
        else:
            dataset = getattr(dataset, 'dataset', None)


def cache_of(dataset: Any) -> Any:
    """Return the `CachedDataset` of a data set; None without one."""
    found = (one for one in datasets_of(dataset) if isinstance(one, CachedDataset))
    return _first(found)


def _data(dataset: Any) -> dict[str, Any]:
    """Return what determines the cost of a sample; None or () where it is unknown."""
    pipeline = _first(one.pipeline for one in datasets_of(dataset) if hasattr(one, 'pipeline'))
    suffix = None
    with contextlib.suppress(Exception):  # a user's data set may have another interface
        suffix = osp.splitext(dataset.get_data_info(0)['img_path'])[1].lower()
    return dict(
        cache=cache_of(dataset) is not None,
        transforms=[type(one).__name__ for one in getattr(pipeline, 'transforms', ())],
        files=suffix,
    )


def _checkpoints(hooks: Any, by_epoch: bool, length: int | None) -> dict[str, Any]:
    """Return the interval in iterations, and whether the hook (not the loop) counts epochs."""
    hook = _first(one for one in hooks if isinstance(one, CheckpointHook) and one.interval > 0)
    if hook is None:
        return dict(checkpoint_interval=None, checkpoint_by_epoch=None)
    unit: int | None = 1
    if hook.by_epoch:  # in a loop without epochs, such a hook saves at the end only
        unit = length if by_epoch else None
    interval = None if unit is None else hook.interval * unit
    return dict(checkpoint_interval=interval, checkpoint_by_epoch=hook.by_epoch)


def _named_hooks(cfg: Any) -> dict[str, str | None]:
    """Return the class name by key of `default_hooks` as the config has it."""
    names: dict[str, str | None] = {}
    for key, hook in _mapping(cfg.get('default_hooks')).items():
        kind = hook.get('type') if isinstance(hook, Mapping) else hook
        if isinstance(kind, str):
            names[key] = kind.rpartition('.')[2]
        elif kind is None:
            names[key] = None
        else:
            names[key] = (kind if isinstance(kind, type) else type(kind)).__name__
    return names


def batches_per_update(runner: Any) -> int:
    """Return the number of batches whose gradients accumulate to an update."""
    return max(getattr(wrapper, '_accumulative_counts', 1) for wrapper in wrappers_of(runner))


def shape_of(batch: Any) -> tuple | None:
    """Return the shape of the inputs of a batch; cheap enough for each iteration."""
    inputs = batch.get('inputs') if isinstance(batch, dict) else None
    if isinstance(inputs, (list, tuple)):
        return (len(inputs), *getattr(inputs[0], 'shape', ())) if inputs else (0,)
    shape = getattr(inputs, 'shape', None)
    return None if shape is None else tuple(shape)


def files_of(batch: Any) -> list[str]:
    """Return the image files of the first 16 samples of a batch, where they are known."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    paths = (getattr(sample, 'img_path', None) for sample in samples or ())
    return [str(path) for path in itertools.islice(filter(None, paths), 16)]


def _mapping(part: Any) -> Mapping[str, Any]:
    """Return a part of a config, or {} where it is built already."""
    return part if isinstance(part, Mapping) else {}


def length_of(loader: Any) -> int | None:
    """Return the number of batches of a loader; None where it has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def _first(values: Any) -> Any:
    return next(iter(values), None)
