"""Mixed precision in which the host does not ask the device whether an update overflowed."""

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
SCALER_OPTIONS: dict[str, tuple] = {  # types, above, below, what that is
    'init_scale': (NUMBER, 0, math.inf, 'a positive number'),
    'growth_factor': (NUMBER, 1, math.inf, 'a number above 1'),
    'backoff_factor': (NUMBER, 0, 1, 'a number between 0 and 1'),
    'growth_interval': ((int,), 0, math.inf, 'a positive int'),
    'enabled': ((bool,), -1, 2, 'True or False'),
}


@OPTIM_WRAPPERS.register_module()
class SparseAmpOptimWrapper(SparseOptimWrapper, AmpOptimWrapper):
    """`AmpOptimWrapper` that waits for nothing, and works on a CPU too.

    Only float16 is scaled: the others have the range of float32, so a scaler would cost its
    kernels and find nothing. Checkpoints are those of `AmpOptimWrapper` all the same, in both
    directions. Under float16, whether an update overflowed is decided on the device, for fused
    optimizers and for others with their state there; what waits is said once.

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
    ``train/grad_norm``  norm of the gradients, unscaled and before clipping: in every update
                         that is clipped by norm, or every `norm_interval`-th
    ===================  =====================================================================

    The watch of `SparseRuntimeInfoHook` gets, never logged: without scaling what
    `SparseOptimWrapper` gives it; with scaling only ``watch/loss_scale``, the scale after each
    update, since infinite gradients are normal then and such updates are left out anyway.

    Args:
        loss_scale: 'dynamic', a number for a fixed scale, or arguments of `GradScaler`. Only
            float16 has use for it. Defaults to 'dynamic'.
        dtype: What autocast computes in: 'float16', 'bfloat16', 'float32', 'float64' or the
            torch.dtype; None is the default of autocast, which is float16 on CUDA and bfloat16
            on a CPU. Defaults to None.
        use_fsdp: Use torch's `ShardedGradScaler`. It is used as it is: under float16 the host
            waits in each update unless the optimizer is fused. Defaults to False.
        norm_interval: Log the norm in every so many updates, with or without clipping; None
            logs it as stock does. Defaults to None.
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
                f'optim_wrapper.type={type(self).__name__!r}: mmengine has mixed precision on '
                f"{', '.join(DEVICES)}, found {self._device}; use 'SparseOptimWrapper'"
            )
        super().__init__(norm_interval=norm_interval, **kwargs)
        self._scale_update_param = (
            None if isinstance(loss_scale, (str, dict)) else float(loss_scale)
        )
        self.cast_dtype = cast_dtype
        is_half = (cast_dtype or _default_dtype(self._device)) == torch.float16
        options['enabled'] = is_half and options.get('enabled', True)
        self.loss_scaler = _build_scaler(self._device, use_fsdp, options)
        # What a scaler that is not needed would have in a checkpoint.
        self._unused_scale = dict(
            scale=float(options.get('init_scale', 2.0**16)),
            growth_factor=options.get('growth_factor', 2.0),
            backoff_factor=options.get('backoff_factor', 0.5),
            growth_interval=options.get('growth_interval', 2000),
            _growth_tracker=0,
        )

    def step(self, **kwargs: Any) -> None:
        """Update parameters; with scaling, not where the gradients have overflowed."""
        scaler = self.loss_scaler
        if not scaler.is_enabled():
            super().step(**kwargs)
            return
        self._complete_window()
        if self.clip_grad_kwargs:
            scaler.unscale_(self.optimizer)
        self._clip_grad()
        scaler.step(self.optimizer, **kwargs)
        self._buffers, self._kept = [], []  # an overflow of gradients leaves them alone
        scaler.update(self._scale_update_param)
        store = self._store()
        if store is not None:
            store.note('watch/loss_scale', scaler._get_scale_async())
        self._say_if_it_waits()

    def state_dict(self) -> dict:
        """As stock; `loss_scaler` is there, and not empty, whether or not it is in use."""
        state_dict = super().state_dict()
        if not self.loss_scaler.is_enabled():
            state_dict['loss_scaler'] = dict(self._unused_scale)
        return state_dict

    def load_state_dict(self, state_dict: dict) -> None:
        """As stock; an empty `loss_scaler`, of a scaler that was disabled, changes nothing."""
        scale = state_dict.pop('loss_scaler', None)
        if scale and self.loss_scaler.is_enabled():
            self.loss_scaler.load_state_dict(scale)
        elif scale:
            self._unused_scale = dict(scale)
        super().load_state_dict(state_dict)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Autocast, and no gradient exchange while gradients accumulate."""
        # Not super(): stock's autocast takes bfloat16 alone on a CPU.
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
        # Gradients that are not clipped are unscaled within the optimizer's step only.
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
    """What autocast computes in when it is not told."""
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
    """What `loss_scale` says, as arguments of a scaler."""
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
