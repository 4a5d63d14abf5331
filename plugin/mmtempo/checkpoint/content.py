"""Build the content of a checkpoint as `Runner.save_checkpoint` does, without copying tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import mmengine
import torch
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper
from mmengine.utils import get_git_hash

from mmtempo.checkpoint.io.snapshot import Deferred
from mmtempo.logging.bounded_history import BoundedHistory
from mmtempo.utils.runner import optimizers_of, unwrapped, wrappers_of

# Packages whose hooks do not access the parts of a checkpoint that a snapshot builds late.
STOCK_PACKAGES = ('mmengine.', 'mmseg.')
Method = TypeVar('Method', bound=Callable)


def leaves_late_parts(method: Method) -> Method:
    """Mark a `before_save_checkpoint` that does not touch optimizer, schedules or metadata."""
    method.leaves_late_parts = True  # type: ignore[attr-defined]
    return method


def checkpoint_of(
    runner: Any,
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    meta: dict | None = None,
    by_epoch: bool = True,
    overlaps: bool = False,
) -> dict:
    """Return the content of a checkpoint, with the live tensors on their devices.

    Args:
        runner: The runner to save.
        save_optimizer: Whether to include the state of the optimizer. Defaults to True.
        save_param_scheduler: Whether to include the states of the schedules. Defaults to True.
        meta: Entries of `meta` to start from. Defaults to None.
        by_epoch: Whether the training counts epochs. Defaults to True.
        overlaps: Whether the copy overlaps with the training. Parts that nothing changes before
            the next fence are then left to the snapshot to build. Defaults to False.
    """
    defers = overlaps and leaves_late(runner)
    meta = {} if meta is None else meta
    meta.setdefault('epoch', runner.epoch + by_epoch)
    meta.setdefault('iter', runner.iter + (not by_epoch))
    meta.update(
        cfg=_made(partial(_text_of, runner.cfg), defers),
        seed=runner.seed,
        experiment_name=runner.experiment_name,
        time=time.strftime('%Y%m%d_%H%M%S', time.localtime()),
        mmengine_version=_version(),
    )
    if hasattr(runner.train_dataloader.dataset, 'metainfo'):
        meta.update(dataset_meta=runner.train_dataloader.dataset.metainfo)
    state = unwrapped(runner.model).state_dict()
    hub = runner.message_hub.state_dict()
    # This dict is the hub's own: a file of the same save may add keys before the snapshot copies.
    hub['resumed_keys'] = hub['resumed_keys'].copy()
    checkpoint = dict(meta=meta, state_dict=state, message_hub=hub)
    if save_optimizer:
        make = runner.optim_wrapper.state_dict
        checkpoint['optimizer'] = _made(make, defers and _changes_by_steps(runner))
    if save_param_scheduler and runner.param_schedulers is None:
        runner.logger.warning(
            '`save_param_scheduler` is True but `self.param_schedulers` is None, so skip saving '
            'parameter schedulers'
        )
    elif save_param_scheduler:
        checkpoint['param_schedulers'] = _states_of(runner.param_schedulers)
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    # These histories are copies for this checkpoint. Converting a bounded one reads values from
    # the device, so the snapshot does that late.
    hub = checkpoint.get('message_hub', {})
    copies = hub.get('log_scalars', {})
    if (overlaps and copies) or any(isinstance(copy, BoundedHistory) for copy in copies.values()):
        hub['log_scalars'] = _late(copies, is_of_host=True)
    if overlaps:
        _mark_late(checkpoint)
    return checkpoint


def _made(make: Callable[[], Any], defers: bool) -> Any:
    return Deferred(make) if defers else make()


def _states_of(schedulers: Any) -> Any:
    if isinstance(schedulers, dict):
        return {name: [one.state_dict() for one in some] for name, some in schedulers.items()}
    return [one.state_dict() for one in schedulers]


def leaves_late(runner: Any) -> bool:
    """Return whether no `before_save_checkpoint` accesses the parts that a snapshot builds late.

    The method of a user's hook may, unless it is marked by `leaves_late_parts`.
    """
    methods = [hook.before_save_checkpoint for hook in runner.hooks]
    return all(
        hasattr(method, 'leaves_late_parts')
        or getattr(method, '__module__', '').startswith(STOCK_PACKAGES)
        for method in methods
    )


def _changes_by_steps(runner: Any) -> bool:
    """Return whether only steps and schedules change the content of `optimizer`.

    False for a loss scale, which a wrapper adds, and where `state_dict` calls code of users.
    """
    return all(
        type(one).state_dict is OptimWrapper.state_dict
        and type(one.optimizer).state_dict is torch.optim.Optimizer.state_dict
        and not one.optimizer._optimizer_state_dict_pre_hooks
        and not one.optimizer._optimizer_state_dict_post_hooks
        for one in wrappers_of(runner)
    )


def changed_by_updates(runner: Any) -> set[int]:
    """Return the addresses of tensors that only an update changes: a snapshot may copy them late.

    These are the trained parameters and their averages. Buffers and parameters without a gradient
    are left out: a forward pass may change them, as that of a momentum encoder does.
    """
    late = {
        parameter.data_ptr()
        for optimizer in optimizers_of(runner)
        for group in optimizer.param_groups
        for parameter in group['params']
        if parameter.requires_grad
    }
    for hook in runner.hooks:
        if isinstance(hook, EMAHook):
            late.update(parameter.data_ptr() for parameter in hook.ema_model.parameters())
    return late


def _mark_late(checkpoint: dict) -> None:
    """Let a snapshot traverse these parts late.

    Only updates and schedules change the optimizer's state, and `_metadata` was created for this
    checkpoint, so the training holds no reference to it.
    """
    of_model = getattr(checkpoint.get('state_dict'), '__dict__', {})
    for values, key in (
        (of_model, '_metadata'),
        (checkpoint, 'optimizer'),
        (checkpoint, 'param_schedulers'),
    ):
        if key in values and type(values[key]) is not Deferred:
            values[key] = _late(values[key])


def _late(content: Any, is_of_host: bool = False) -> Deferred:
    return Deferred(lambda: content, is_of_host)


_texts: dict[str, str] = {}


def _text_of(cfg: Any) -> str:
    """Return `cfg.pretty_text`, cached: formatting it takes longer than the rest of a save."""
    key = repr(cfg)
    if key not in _texts:
        _texts.clear()
        _texts[key] = cfg.pretty_text
    return _texts[key]


@cache
def _version() -> str:
    return mmengine.__version__ + get_git_hash()  # runs git
