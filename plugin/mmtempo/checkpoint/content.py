"""Build the content of a checkpoint as `Runner.save_checkpoint` does, without copying tensors."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar, cast

import mmengine
import torch
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper
from mmengine.utils import get_git_hash
from torch.nn import Module

from mmtempo.checkpoint.io.snapshot import Deferred
from mmtempo.logging.bounded_history import BoundedHistory
from mmtempo.utils.runner import optimizers_of, unwrapped, wrappers_of

# Packages whose hooks do not access the parts of a checkpoint that a snapshot builds late.
STOCK_PACKAGES = ('mmengine.', 'mmseg.')
# Methods by which a class of modules can change the content of its state dict.
STATE_METHODS = ('state_dict', '_save_to_state_dict', 'get_extra_state', '__getattr__')
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
    state, metadata = state_of(unwrapped(runner.model))
    if metadata is not None:
        state._metadata = _made(metadata, defers)
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


class _CustomState(Exception):
    """Raised for a module that customizes its state dict."""


def state_of(model: Module) -> tuple[Any, Callable[[], OrderedDict] | None]:
    """Return `model.state_dict()` without `_metadata`, and a function that builds `_metadata`.

    The training waits for this, and `state_dict` calls four functions of each module, of which
    hundreds have no tensor. Where any module customizes its state dict, `model.state_dict()` is
    called and returned as it is, with None in place of the function.
    """
    state: OrderedDict = OrderedDict()
    modules: list[tuple[str, Module]] = []
    try:
        _add(model, '', state, modules)
    except _CustomState:
        return model.state_dict(), None

    def metadata() -> OrderedDict:
        return OrderedDict([(path[:-1], {'version': one._version}) for path, one in modules])

    return state, metadata


def _add(module: Module, prefix: str, state: dict, modules: list[tuple[str, Module]]) -> None:
    own, kind = vars(module), cast(Any, type(module))
    if (
        not _has_stock_state(kind)
        or own['_state_dict_hooks']
        or own['_state_dict_pre_hooks']
        or 'state_dict' in own
        or '_save_to_state_dict' in own
    ):
        raise _CustomState
    modules.append((prefix, module))
    if own['_parameters']:
        for name, tensor in own['_parameters'].items():
            if tensor is not None:
                state[prefix + name] = tensor.detach()
    if own['_buffers']:
        for name, tensor in own['_buffers'].items():
            if tensor is not None and name not in own['_non_persistent_buffers_set']:
                state[prefix + name] = tensor.detach()
    if own['_modules']:
        for name, child in own['_modules'].items():
            if child is not None:
                _add(child, f'{prefix}{name}.', state, modules)


@cache
def _has_stock_state(kind: Any) -> bool:
    return all(getattr(kind, name, None) is getattr(Module, name) for name in STATE_METHODS)
