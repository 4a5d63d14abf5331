"""What a checkpoint holds: as `Runner.save_checkpoint` has it, but nothing is copied yet."""

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

from .model_state import state_of

# Packages whose hooks leave the parts of a checkpoint alone that a snapshot makes late.
LEAVE_LATE = ('mmengine.', 'mmseg.')
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
    """The content, with the live tensors in it, on their devices.

    Where it `overlaps` with the training, a snapshot makes late what nothing changes early.
    """
    waits = overlaps and leaves_late(runner)
    meta = {} if meta is None else meta
    meta.setdefault('epoch', runner.epoch + by_epoch)
    meta.setdefault('iter', runner.iter + (not by_epoch))
    meta.update(
        cfg=_made(partial(_text_of, runner.cfg), waits),
        seed=runner.seed,
        experiment_name=runner.experiment_name,
        time=time.strftime('%Y%m%d_%H%M%S', time.localtime()),
        mmengine_version=_version(),
    )
    if hasattr(runner.train_dataloader.dataset, 'metainfo'):
        meta.update(dataset_meta=runner.train_dataloader.dataset.metainfo)
    state, metadata = state_of(unwrapped(runner.model))
    if metadata is not None:
        state._metadata = _made(metadata, waits)
    hub = runner.message_hub.state_dict()
    # The hub's own: a file that is saved together with this one may add keys before the copy.
    hub['resumed_keys'] = hub['resumed_keys'].copy()
    checkpoint = dict(meta=meta, state_dict=state, message_hub=hub)
    if save_optimizer:
        make = runner.optim_wrapper.state_dict
        checkpoint['optimizer'] = _made(make, waits and _changes_by_steps(runner))
    if save_param_scheduler and runner.param_schedulers is None:
        runner.logger.warning(
            '`save_param_scheduler` is True but `self.param_schedulers` is None, so skip saving '
            'parameter schedulers'
        )
    elif save_param_scheduler:
        checkpoint['param_schedulers'] = _states_of(runner.param_schedulers)
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    # Copies for this checkpoint alone. Those that wait for values of the device do it late.
    hub = checkpoint.get('message_hub', {})
    copies = hub.get('log_scalars', {})
    if (overlaps and copies) or any(isinstance(copy, BoundedHistory) for copy in copies.values()):
        hub['log_scalars'] = _late(copies, is_of_host=True)
    if overlaps:
        _mark_late(checkpoint)
    return checkpoint


def _made(make: Callable[[], Any], waits: bool) -> Any:
    return Deferred(make) if waits else make()


def _states_of(schedulers: Any) -> Any:
    if isinstance(schedulers, dict):
        return {name: [one.state_dict() for one in some] for name, some in schedulers.items()}
    return [one.state_dict() for one in schedulers]


def leaves_late(runner: Any) -> bool:
    """Whether no hook of a user may look at parts of a checkpoint that are not made yet."""
    methods = [hook.before_save_checkpoint for hook in runner.hooks]
    return all(
        hasattr(method, 'leaves_late_parts')
        or getattr(method, '__module__', '').startswith(LEAVE_LATE)
        for method in methods
    )


def _changes_by_steps(runner: Any) -> bool:
    """Whether steps and schedules change all that `optimizer` holds; not so the scale of a loss.

    And whether no code of others is called for it.
    """
    return all(
        type(one).state_dict is OptimWrapper.state_dict
        and type(one.optimizer).state_dict is torch.optim.Optimizer.state_dict
        and not one.optimizer._optimizer_state_dict_pre_hooks
        and not one.optimizer._optimizer_state_dict_post_hooks
        for one in wrappers_of(runner)
    )


def changed_by_updates(runner: Any) -> set[int]:
    """Addresses of what only an update changes, not a forward pass: a snapshot may copy it late.

    Parameters and their averages. Not the buffers, nor parameters without a gradient, which a
    model may update by itself (a momentum encoder).
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
    """Let a snapshot go through these late: only updates and schedules change the optimizer.

    And only those who have made it know of `_metadata`.
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
    """`pretty_text` formats the source of the config, which takes longer than all the rest."""
    key = repr(cfg)
    if key not in _texts:
        _texts.clear()
        _texts[key] = cfg.pretty_text
    return _texts[key]


@cache
def _version() -> str:
    return mmengine.__version__ + get_git_hash()  # runs git
