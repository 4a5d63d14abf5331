"""Train in mixed precision without synchronizing to know whether an update overflowed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner.amp import autocast
from torch import Tensor, nn

from .skippable_step import GuardedGradScaler, is_fused
from .sparse_optim_wrapper import SparseOptimWrapper

DEVICES = ('cuda', 'npu', 'mlu', 'musa', 'cpu')
NUMBER = (float, int)
SCALER_OPTIONS: dict[str, tuple] = {  # types, exclusive bounds, description
    'init_scale': (NUMBER, 0, math.inf, 'a positive number'),
    'growth_factor': (NUMBER, 1, math.inf, 'a number above 1'),
    'backoff_factor': (NUMBER, 0, 1, 'a number between 0 and 1'),
    'growth_interval': ((int,), 0, math.inf, 'a positive int'),
    'enabled': ((bool,), -1, 2, 'True or False'),
}


@OPTIM_WRAPPERS.register_module()
class SparseAmpOptimWrapper(SparseOptimWrapper, AmpOptimWrapper):
    """An `AmpOptimWrapper` that does not synchronize with the device, and also works on a CPU.

    Losses are scaled in float16 only: bfloat16 has the range of float32, so a scaler would cost
    its kernels and never find an overflow. Checkpoints are interchangeable with those of
    `AmpOptimWrapper` in both directions. In float16, the device decides whether an update
    overflowed, for fused optimizers and for others whose state is on the device; for any other
    optimizer a warning is logged once.

    Example::

        optim_wrapper = dict(
            type='SparseAmpOptimWrapper',
            dtype='bfloat16',
            optimizer=dict(type='AdamW', lr=1e-4, fused=True),
            clip_grad=dict(max_norm=1.0),
            norm_interval=50)

    It logs:

    ===================  =====================================================================
    key                  value
    ===================  =====================================================================
    ``train/grad_norm``  norm of the gradients, unscaled and before clipping: in each update
                         that is clipped by norm, or in each `norm_interval`-th update
    ===================  =====================================================================

    The watch of `SparseRuntimeInfoHook` gets values that are not logged. Without scaling these
    are those of `SparseOptimWrapper`. With scaling it gets only ``watch/loss_scale``, the scale
    after each update: infinite gradients are normal then, and the scaler skips such updates.

    Args:
        loss_scale: 'dynamic', a number for a fixed scale, or arguments of `GradScaler`. Used in
            float16 only. Defaults to 'dynamic'.
        dtype: Data type of autocast: 'float16', 'bfloat16', 'float32', 'float64' or the
            torch.dtype. Defaults to None: the default of autocast, which is float16 on CUDA and
            bfloat16 on a CPU.
        use_fsdp: Whether to use torch's `ShardedGradScaler`. It is not adapted: in float16 each
            update synchronizes unless the optimizer is fused. Defaults to False.
        norm_interval: Interval, in updates, at which the norm is logged, with or without
            clipping. Defaults to None: logged as in stock.
        kwargs: Further arguments of `SparseOptimWrapper`.
    """

    def __init__(
        self,
        loss_scale: str | float | dict = 'dynamic',
        dtype: str | torch.dtype | None = None,
        use_fsdp: bool = False,
        norm_interval: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = _scaler_options(loss_scale, use_fsdp)
        cast_dtype = _checked_dtype(dtype)
        self._device = get_device()
        if self._device not in DEVICES:
            raise RuntimeError(
                f'optim_wrapper.type={type(self).__name__!r}: mmengine supports mixed precision '
                f"on {', '.join(DEVICES)}, found {self._device}; use 'SparseOptimWrapper'"
            )
        super().__init__(norm_interval=norm_interval, **kwargs)
        self._scale_update_param = (
            None if isinstance(loss_scale, (str, dict)) else float(loss_scale)
        )
        self.cast_dtype = cast_dtype
        is_half = (cast_dtype or _default_dtype(self._device)) == torch.float16
        options['enabled'] = is_half and options.get('enabled', True)
        self.loss_scaler = _build_scaler(self._device, use_fsdp, options)
        # State of a disabled scaler, so that float16 can resume from any checkpoint.
        self._unused_scale = dict(
            scale=float(options.get('init_scale', 2.0**16)),
            growth_factor=options.get('growth_factor', 2.0),
            backoff_factor=options.get('backoff_factor', 0.5),
            growth_interval=options.get('growth_interval', 2000),
            _growth_tracker=0,
        )

    def step(self, **kwargs: Any) -> None:
        """Update the parameters; with scaling, skip the update if gradients have overflowed."""
        scaler = self.loss_scaler
        if not scaler.is_enabled():
            super().step(**kwargs)
            return
        self._complete_window()
        if self.clip_grad_kwargs:
            scaler.unscale_(self.optimizer)
        self._clip_grad()
        scaler.step(self.optimizer, **kwargs)
        self._buffers, self._kept = [], []  # not restored: an overflow leaves buffers alone
        scaler.update(self._scale_update_param)
        store = self._store()
        if store is not None:
            store.note('watch/loss_scale', scaler._get_scale_async())
        self._warn_if_synchronizing()

    def state_dict(self) -> dict:
        """Return stock's state dict, with a `loss_scaler` that is never empty."""
        state_dict = super().state_dict()
        if not self.loss_scaler.is_enabled():
            state_dict['loss_scaler'] = dict(self._unused_scale)
        return state_dict

    def load_state_dict(self, state_dict: dict) -> None:
        """Load stock's state dict; ignore an empty `loss_scaler`, of a disabled scaler."""
        scale = state_dict.pop('loss_scaler', None)
        if scale and self.loss_scaler.is_enabled():
            self.loss_scaler.load_state_dict(scale)
        elif scale:
            self._unused_scale = dict(scale)
        super().load_state_dict(state_dict)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Enable autocast, and disable the gradient exchange while gradients accumulate."""
        # Not super(): stock's autocast supports only bfloat16 on a CPU.
        with SparseOptimWrapper.optim_context(self, model), self._autocast():
            yield

    def _autocast(self) -> Any:
        if self._device != 'cpu':
            return autocast(dtype=self.cast_dtype)
        dtype = self.cast_dtype or torch.bfloat16
        return torch.autocast('cpu', dtype, enabled=dtype in (torch.bfloat16, torch.float16))

    def _decides_on_device(self) -> bool:
        scaler = self.loss_scaler
        if scaler.is_enabled() and not isinstance(scaler, GuardedGradScaler):
            return is_fused(self.optimizer)
        return super()._decides_on_device()

    def _total_norm(self, grads: list[Tensor]) -> Tensor:
        norm = super()._total_norm(grads)
        # Without clipping, gradients are unscaled only within the optimizer's step.
        if self.loss_scaler.is_enabled() and not self.clip_grad_kwargs:
            norm = norm / self.loss_scaler._get_scale_async()
        return norm


def _build_scaler(device: str, use_fsdp: bool, options: dict) -> Any:
    if use_fsdp:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(**(options if device != 'cpu' else dict(options, device='cpu')))
    if device in ('cuda', 'cpu'):
        return GuardedGradScaler(device, **options)
    return amp_optimizer_wrapper.GradScaler(**options)


def _default_dtype(device: str) -> torch.dtype:
    """Return the default data type of autocast."""
    if device == 'cpu':
        return torch.bfloat16
    if hasattr(torch, 'get_autocast_dtype'):  # torch 2.4
        return torch.get_autocast_dtype(device)
    return torch.get_autocast_gpu_dtype()


def _checked_dtype(dtype: Any) -> torch.dtype | None:
    names = AmpOptimWrapper.valid_dtypes
    if dtype is None or dtype in [getattr(torch, name) for name in names]:
        return dtype
    if isinstance(dtype, str) and dtype in names:
        return getattr(torch, dtype)
    error = ValueError if isinstance(dtype, (str, torch.dtype)) else TypeError
    raise error(f'optim_wrapper.dtype: expected one of {", ".join(names)}, found {dtype!r}')


def _scaler_options(loss_scale: Any, use_fsdp: bool) -> dict:
    """Return `loss_scale` as arguments of a scaler, after checking them."""
    key = 'optim_wrapper.loss_scale'
    if isinstance(loss_scale, dict):
        known = [*SCALER_OPTIONS, *(['process_group'] if use_fsdp else [])]
        for name, value in loss_scale.items():
            if name not in known:
                raise ValueError(f'{key}: expected keys {", ".join(known)}, found {name!r}')
            if name in SCALER_OPTIONS:
                _check_option(f'{key}.{name}', value, *SCALER_OPTIONS[name])
        return dict(loss_scale)
    if isinstance(loss_scale, str):
        if loss_scale == 'dynamic':
            return {}
        raise ValueError(f"{key}: expected 'dynamic', a number or a dict, found {loss_scale!r}")
    _check_option(key, loss_scale, NUMBER, 0, math.inf, "'dynamic', a positive number or a dict")
    return dict(init_scale=float(loss_scale))


def _check_option(
    key: str, value: Any, types: tuple, above: float, below: float, expected: str
) -> None:
    message = f'{key}: expected {expected}, found {value!r}'
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(message)
    if not above < value < below:
        raise ValueError(message)
