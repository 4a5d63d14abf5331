"""What a checkpoint holds: as `Runner.save_checkpoint` has it, but nothing is copied yet."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import mmengine
import torch
from mmengine.hooks import EMAHook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict
from mmengine.utils import get_git_hash

from ..core.snapshot import Late


def checkpoint_of(
    runner: Any,
    save_optimizer: bool = True,
    save_param_scheduler: bool = True,
    meta: dict | None = None,
    by_epoch: bool = True,
) -> dict:
    """The content, with the live tensors in it, on their devices."""
    meta = {} if meta is None else meta
    meta.setdefault('epoch', runner.epoch + by_epoch)
    meta.setdefault('iter', runner.iter + (not by_epoch))
    meta.update(
        cfg=_text_of(runner.cfg),
        seed=runner.seed,
        experiment_name=runner.experiment_name,
        time=time.strftime('%Y%m%d_%H%M%S', time.localtime()),
        mmengine_version=_version(),
    )
    if hasattr(runner.train_dataloader.dataset, 'metainfo'):
        meta.update(dataset_meta=runner.train_dataloader.dataset.metainfo)
    checkpoint = dict(
        meta=meta,
        state_dict=unwrapped(runner.model).state_dict(),
        message_hub=runner.message_hub.state_dict(),
    )
    if save_optimizer:
        checkpoint['optimizer'] = runner.optim_wrapper.state_dict()
    if save_param_scheduler and runner.param_schedulers is None:
        runner.logger.warning(
            '`save_param_scheduler` is True but `self.param_schedulers` is None, so skip saving '
            'parameter schedulers'
        )
    elif save_param_scheduler:
        schedulers = runner.param_schedulers
        checkpoint['param_schedulers'] = (
            {name: [one.state_dict() for one in some] for name, some in schedulers.items()}
            if isinstance(schedulers, dict)
            else [one.state_dict() for one in schedulers]
        )
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    return checkpoint


def unwrapped(model: Any) -> torch.nn.Module:
    return model.module if is_model_wrapper(model) else model


def optimizers_of(runner: Any) -> list[torch.optim.Optimizer]:
    wrapper = runner.optim_wrapper
    wrappers = list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return [one.optimizer for one in wrappers]


def changed_by_updates(runner: Any) -> set[int]:
    """Addresses of what only an update changes, not a forward pass: a snapshot may copy it late.

    Parameters and their averages. Not the buffers, nor parameters without a gradient, which a
    model may update by itself (a momentum encoder).
    """
    tensors: list[torch.Tensor] = []
    for optimizer in optimizers_of(runner):
        for group in optimizer.param_groups:
            tensors += [parameter for parameter in group['params'] if parameter.requires_grad]
    for hook in runner.hooks:
        if isinstance(hook, EMAHook):
            tensors += hook.ema_model.parameters()
    return {tensor.data_ptr() for tensor in tensors}


def mark_late(checkpoint: dict) -> None:
    """Let a snapshot go through these late: only updates and schedules change the optimizer.

    And nobody but `state_dict`, which has made it, knows of the `_metadata`.
    """
    of_model = getattr(checkpoint['state_dict'], '__dict__', {})
    for values, key in ((checkpoint, 'optimizer'), (of_model, '_metadata')):
        if key in values:
            values[key] = Late(values[key])


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
