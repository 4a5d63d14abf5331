"""Clips gradients and measures their norm without the host reading it."""

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

from .skippable_step import decides_on_device, step_unless
from .update_window import UpdateWindow


@OPTIM_WRAPPERS.register_module()
class SparseOptimWrapper(OptimWrapper):
    """`OptimWrapper` that waits for nothing: what it logs stays on the device until it is logged.

    That takes `SparseRuntimeInfoHook`; with the stock hook, the gradient norm is read when it
    is logged, as stock does. The weights are those of `OptimWrapper`, bit by bit.

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
    ``train/grad_norm``  norm of the gradients before clipping: in every update that is clipped
                         by norm, or every `norm_interval`-th
    ===================  =====================================================================

    The watch of `SparseRuntimeInfoHook` gets ``watch/grad_norm`` in each update whose norm is
    computed, and ``watch/skipped``, which are never logged. With its `on_nonfinite='skip'`, an
    update whose gradient norm is not finite is left out, decided on the device, and the running
    statistics of its batches with it. The gradients have to be the same on all ranks then, as
    they are under DDP.

    `clip_grad=dict(error_if_nonfinite=True)` asks torch to wait in each update.

    With `train_cfg.count='updates'` it is the loop that says which batches make an update: its
    gradient is the mean over all of their samples then, however many each of them has.

    Args:
        optimizer: Updates the parameters.
        accumulative_counts: Batches whose gradients make one update. Defaults to 1.
        clip_grad: Arguments of `clip_grad_norm_`, or with type='value' of `clip_grad_value_`.
            Defaults to None.
        norm_interval: Log the norm in every so many updates, with or without clipping; None
            logs it as stock does. A window of the log is over that many norms. Defaults to None.
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
        # Not super(): under SparseAmpOptimWrapper that demands a GPU.
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad)
        # mmengine builds them of ConfigDict, which looks up a key at ten times the cost: 1.6 ms a
        # step of AdamW with 237 groups here. After a resume they are plain with stock as well.
        optimizer.param_groups[:] = [dict(group) for group in optimizer.param_groups]
        self.norm_interval = norm_interval
        self._window: UpdateWindow | None = None  # None where batches are counted
        self._is_within = False  # resumed in the middle of an update
        self._is_known = False  # whether deciding to skip waits
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []

    def begin_update(self, number: int, samples: int) -> None:
        """Begin an update whose batches are announced, each before its step, and not counted.

        What an update has left that was not completed, as where no batch came, is thrown away.

        Args:
            number: Of the update, from 0.
            samples: Of an update, as a rule.
        """
        if self._window is not None:
            self._window.check_before(number)
        self._drop_window()
        self._window = UpdateWindow(number, samples)
        self._inner_count = number * self._accumulative_counts
        self._is_within = False

    def announce(self, samples: int, is_last: bool) -> None:
        """The next batch of the update is at its turn.

        Args:
            samples: That it has.
            is_last: Whether it completes the update.
        """
        assert self._window is not None, 'begin_update comes first'
        self._window.announce(samples, is_last)

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """As stock; that an update is resumed in its middle is said only where that is so."""
        self._drop_window()
        within = init_counts % self._accumulative_counts
        super().initialize_count_status(model, init_counts - within, max_counts)
        self._inner_count, self._is_within = init_counts, within > 0

    def should_update(self) -> bool:
        """Whether this batch completes an update."""
        return super().should_update() if self._window is None else self._window.is_last

    def should_sync(self) -> bool:
        """Whether processes exchange their gradients behind this batch."""
        return super().should_sync() if self._window is None else self._window.is_last

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The share that a batch has in its update."""
        if self._window is not None:
            return loss / self._window.divisor()
        if self._is_within:
            self._is_within = False
            print_log(
                f'Iteration {self._inner_count + 1} is in the middle of an update of '
                f'{self._accumulative_counts} (optim_wrapper.accumulative_counts): the gradients '
                "of those before were not saved. With train_cfg.count='updates' none are lost.",
                logger='current',
                level=logging.WARNING,
            )
        return super().scale_loss(loss)

    def step(self, **kwargs: Any) -> None:
        """Clip the gradients, then update, or skip the update on the device."""
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
        self._say_if_it_waits()

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """As stock; where updates may be skipped, what the forward pass changes is kept before."""
        if self.skip_nonfinite and self._inner_count % self._accumulative_counts == 0:
            self._buffers = [part for part in model.buffers() if part.is_floating_point()]
            self._kept = [part.clone() for part in self._buffers]
        with OptimWrapper.optim_context(self, model):
            yield

    @torch.no_grad()
    def _complete_window(self) -> None:
        """Make a mean over samples of the gradients, where the batches were not as usual."""
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
        """Running statistics of a batch that is skipped would stay nan for good."""
        cancelled = bad.bool()
        for live, kept in zip(self._buffers, self._kept):
            torch.where(cancelled.to(live.device, non_blocking=True), kept, live, out=live)
        self._buffers, self._kept = [], []

    def _clip_grad(self, measure: bool = False) -> Tensor | None:
        """Clip the gradients, and log their norm where it is due.

        Returns the norm from before, where it is known; `measure` asks for one that is finite
        only where all gradients are.
        """
        clips = self.clip_grad_kwargs or {}
        by_norm = bool(clips) and self.grad_name == 'grad_norm'
        is_due = self._is_norm_due(by_norm)
        params = self._with_gradient() if clips or is_due or measure else []
        if not params:
            return None
        # A norm of order 0 or below may be finite where gradients are not.
        is_telling = by_norm and float(clips.get('norm_type', 2)) > 0
        norm = None
        if (measure and not is_telling) or (is_due and not by_norm):
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
        # By batches, which a resumed run goes on counting; the last update may have fewer.
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
        """Where values wait on the device; None where the stock hook is in use."""
        return self.message_hub.get_info('mmtempo_scalars')

    def _decides_on_device(self) -> bool:
        return decides_on_device(self.optimizer)

    def _say_if_it_waits(self) -> None:
        """Once, when the first update has made the state of the optimizer."""
        if self._is_known:
            return
        on_device = self._decides_on_device()
        self._is_known = not on_device or bool(self.optimizer.state)
        if not on_device:
            print_log(
                'Whether an update is skipped because of non-finite gradients is decided on the '
                f'host, which waits for the device in each: {type(self.optimizer).__name__} is not '
                'fused and has state on the host. Set optim_wrapper.optimizer.fused=True, which '
                'torch has for Adam, AdamW, SGD and Adagrad.',
                logger='current',
                level=logging.WARNING,
            )


@torch.no_grad()
def total_norm(grads: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients together."""
    if hasattr(torch.nn.utils, 'get_total_norm'):  # torch 2.6
        return torch.nn.utils.get_total_norm(grads)
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    device = norms[0].device
    return torch.linalg.vector_norm(
        torch.stack([norm.to(device, non_blocking=True) for norm in norms])
    )


def _check_interval(interval: Any) -> None:
    if interval is None:
        return
    expected = f'optim_wrapper.norm_interval: expected a positive int or None, found {interval!r}'
    if not isinstance(interval, int) or isinstance(interval, bool):
        raise TypeError(expected)
    if interval < 1:
        raise ValueError(expected)
