"""Clip gradients, and measure their norm, without synchronization."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn

from mmtempo.utils.checks import is_whole

from .skippable_step import decides_on_device, step_unless
from .update_window import UpdateWindow


@OPTIM_WRAPPERS.register_module()
class SparseOptimWrapper(OptimWrapper):
    """An `OptimWrapper` that does not synchronize with the device.

    The gradient norm stays on the device until `SparseRuntimeInfoHook` logs it. With the stock
    hook it is read in each update that logs it, as in stock. The weights equal those of
    `OptimWrapper` bit for bit.

    Example::

        optim_wrapper = dict(
            type='SparseOptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, fused=True),
            clip_grad=dict(max_norm=1.0),
            norm_interval=50)

    It logs:

    ===================  =====================================================================
    key                  value
    ===================  =====================================================================
    ``train/grad_norm``  norm of the gradients before clipping: in each update that is clipped
                         by norm, or in each `norm_interval`-th update
    ===================  =====================================================================

    The watch of `SparseRuntimeInfoHook` gets ``watch/grad_norm`` in each update that computes
    the norm, and ``watch/skipped``; neither is logged. With its `on_nonfinite='skip'`, an update
    whose gradient norm is not finite is skipped, and the running statistics of its batches are
    restored. That is decided on the device. The gradients must then be the same on all ranks,
    as they are under DDP.

    `clip_grad=dict(error_if_nonfinite=True)` makes torch synchronize in each update.

    With `train_cfg.count='updates'` the loop announces the batches of an update. The gradient is
    then the mean over all of their samples, even if the batches differ in size.

    Args:
        optimizer: The optimizer.
        accumulative_counts: Number of batches whose gradients make one update. Defaults to 1.
        clip_grad: Arguments of `clip_grad_norm_`, or with type='value' of `clip_grad_value_`.
            Defaults to None.
        norm_interval: Interval, in updates, at which the norm is logged, with or without
            clipping. A window of the log is over that many norms. Defaults to None: logged as
            in stock.
    """

    # Set by SparseRuntimeInfoHook.
    skip_nonfinite = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
        norm_interval: int | None = None,
    ) -> None:
        _check_interval(norm_interval)
        # Not super(): in SparseAmpOptimWrapper that is AmpOptimWrapper, which requires a GPU.
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad)
        # mmengine's groups are ConfigDicts, whose lookups cost ten times those of a dict: 1.6 ms a
        # step of AdamW with 237 groups. After a resume stock has plain dicts as well.
        optimizer.param_groups[:] = [dict(group) for group in optimizer.param_groups]
        self.norm_interval = norm_interval
        self._window: UpdateWindow | None = None  # None: updates follow from the batch count
        self._is_within = False  # resumed in the middle of an update
        self._is_checked = False  # whether skipping synchronizes has been determined
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []

    def begin_update(self, number: int, samples: int) -> None:
        """Begin an update whose batches are announced, each before its step, and not counted.

        Gradients of an update that was not completed, because a batch failed, are discarded.

        Args:
            number: Index of the update, from 0.
            samples: Usual number of samples of an update.
        """
        if self._window is not None:
            self._window.check_before(number)
        self._drop_window()
        self._window = UpdateWindow(number, samples)
        self._inner_count = number * self._accumulative_counts
        self._is_within = False

    def announce(self, samples: int, is_last: bool) -> None:
        """Announce the next batch of the update, before its step.

        Args:
            samples: Number of samples of the batch.
            is_last: Whether it completes the update.
        """
        assert self._window is not None, 'begin_update comes first'
        self._window.announce(samples, is_last)

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Initialize the counts as stock does, but warn of a lost update only if one is lost.

        Stock warns whenever the iteration is no multiple of the counts; here the warning comes
        with the first loss, and not if batches are announced.
        """
        self._drop_window()
        within = init_counts % self._accumulative_counts
        super().initialize_count_status(model, init_counts - within, max_counts)
        self._inner_count, self._is_within = init_counts, within > 0

    def should_update(self) -> bool:
        """Return whether this batch completes an update."""
        return super().should_update() if self._window is None else self._window.is_last

    def should_sync(self) -> bool:
        """Return whether processes exchange gradients after this batch."""
        return super().should_sync() if self._window is None else self._window.is_last

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Scale the loss of a batch by the share of the batch in its update."""
        if self._window is not None:
            return loss / self._window.divisor()
        if self._is_within:
            self._is_within = False
            print_log(
                f'optim_wrapper.accumulative_counts={self._accumulative_counts}: iteration '
                f'{self._inner_count + 1} resumes in the middle of an update; the gradients of '
                'its earlier batches are lost, because checkpoints do not contain gradients; set '
                "train_cfg.count='updates' to save between updates only",
                logger='current',
                level=logging.WARNING,
            )
        return super().scale_loss(loss)

    def step(self, **kwargs: Any) -> None:
        """Clip the gradients and update, or skip the update by a decision on the device."""
        self._complete_window()
        norm = self._clip_grad(measure=self.skip_nonfinite)
        store = self._store()
        if norm is not None and store is not None:
            store.note('watch/grad_norm', norm)
        if norm is None or not self.skip_nonfinite:
            self.optimizer.step(**kwargs)
            return
        bad = norm.isfinite().logical_not().float()
        step_unless(bad, self.optimizer, **kwargs)
        self._restore_buffers(bad)
        if store is not None:
            store.note('watch/skipped', bad)
        self._warn_if_synchronizing()

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Enter stock's context; copy the model's buffers first if the update may be skipped.

        The copy is made once an update, before the forward pass of its first batch.
        """
        if self.skip_nonfinite and self._inner_count % self._accumulative_counts == 0:
            self._buffers = [part for part in model.buffers() if part.is_floating_point()]
            self._kept = [part.clone() for part in self._buffers]
        with OptimWrapper.optim_context(self, model):
            yield

    @torch.no_grad()
    def _complete_window(self) -> None:
        """Rescale the gradients to a mean over samples, if the batches were not the usual ones."""
        factor = 1.0 if self._window is None else self._window.complete()
        if factor != 1.0:
            grads = (param.grad for param in self._with_gradient())
            torch._foreach_mul_([grad for grad in grads if grad is not None], factor)

    def _drop_window(self) -> None:
        if self._window is not None and not self._window.is_complete:
            self.zero_grad()
        self._window = None

    @torch.no_grad()
    def _restore_buffers(self, bad: Tensor) -> None:
        """Restore the buffers of a skipped update: running statistics would stay NaN forever."""
        cancelled = bad.bool()
        for live, kept in zip(self._buffers, self._kept):
            torch.where(cancelled.to(live.device, non_blocking=True), kept, live, out=live)
        self._buffers, self._kept = [], []

    def _clip_grad(self, measure: bool = False) -> Tensor | None:
        """Clip the gradients, log their norm if it is due, and return the norm before clipping.

        Args:
            measure: Whether the returned norm must be finite only if all gradients are.
                Defaults to False: it is None if it was not computed anyway.
        """
        clips = self.clip_grad_kwargs or {}
        by_norm = bool(clips) and self.grad_name == 'grad_norm'
        is_due = self._is_norm_due(by_norm)
        params = self._with_gradient() if clips or is_due or measure else []
        if not params:
            return None
        # A norm of order 0 or below may be finite where gradients are not.
        is_reliable = by_norm and float(clips.get('norm_type', 2)) > 0
        norm = None
        if (measure and not is_reliable) or (is_due and not by_norm):
            grads = [param.grad for param in params if param.grad is not None]
            norm = self._total_norm(grads)
        clipped = self.clip_func(params, **clips) if clips else None
        if is_due:
            self._log_norm(clipped if by_norm else norm)
        return clipped if norm is None else norm

    def _with_gradient(self) -> list[Tensor]:
        params = [param for group in self.optimizer.param_groups for param in group['params']]
        return [param for param in params if param.requires_grad and param.grad is not None]

    def _is_norm_due(self, clips_by_norm: bool) -> bool:
        if self.norm_interval is None:
            return clips_by_norm
        # Rounded up from the batch count, which a resume continues: the last update may have fewer.
        update = -(-self._inner_count // self._accumulative_counts)
        return update % self.norm_interval == 0

    def _total_norm(self, grads: list[Tensor]) -> Tensor:
        return total_norm(grads)

    def _log_norm(self, norm: Any) -> None:
        store = self._store()
        if store is None:
            self.message_hub.update_scalar('train/grad_norm', float(norm))
        else:
            store.note('train/grad_norm', norm)

    def _store(self) -> Any:
        """Return the buffer of values on the device; None with the stock runtime info hook."""
        return self.message_hub.get_info('mmtempo_scalars')

    def _decides_on_device(self) -> bool:
        return decides_on_device(self.optimizer)

    def _warn_if_synchronizing(self) -> None:
        """Warn once, when the first update has created the state of the optimizer."""
        if self._is_checked:
            return
        on_device = self._decides_on_device()
        self._is_checked = not on_device or bool(self.optimizer.state)
        if not on_device:
            print_log(
                f'optim_wrapper: {type(self.optimizer).__name__} is not fused and has state on '
                'the host, so each update synchronizes to decide whether it is skipped for '
                'non-finite gradients; set optim_wrapper.optimizer.fused=True, which torch has '
                'for Adam, AdamW, SGD and Adagrad',
                logger='current',
                level=logging.WARNING,
            )


@torch.no_grad()
def total_norm(grads: list[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients together."""
    if hasattr(torch.nn.utils, 'get_total_norm'):  # torch 2.6
        return torch.nn.utils.get_total_norm(grads)
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    device = norms[0].device
    return torch.linalg.vector_norm(
        torch.stack([norm.to(device, non_blocking=True) for norm in norms])
    )


def _check_interval(interval: Any) -> None:
    if interval is None or is_whole(interval):
        return
    error = ValueError if type(interval) is int else TypeError
    raise error(f'optim_wrapper.norm_interval: expected a positive int or None, found {interval!r}')
