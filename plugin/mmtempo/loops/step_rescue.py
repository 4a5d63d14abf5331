"""Saves the last whole iteration where the next one fails because another process has left."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapperDict

from .saving import save_state


class StepRescue:
    """What a forward pass changes, kept so that an iteration can be undone until it updates.

    An error of the backward pass, as gloo raises it where a process has left, comes before the
    optimizer's step: weights are those of the last iteration. Buffers, as running statistics,
    have been moved by the forward pass, so they are copied before it. Only where processes
    communicate over gloo: NCCL fails on the device, whose state is unknown then.

    Args:
        runner: Of the training.
        infos: Keys of the message hub that the iteration changes before its step.
    """

    def __init__(self, runner: Any, infos: tuple[str, ...]) -> None:
        self._runner, self._infos = runner, infos
        distributed = torch.distributed
        self._is_on = (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
            and distributed.get_backend() == 'gloo'
        )
        self._buffers: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._kept: dict[str, Any] = {}
        self._backwards: list[int] | None = None

    def begin(self) -> None:
        """Keep the state; the iteration begins."""
        if not self._is_on:
            return
        model = self._runner.model
        self._buffers = list((model.module if is_model_wrapper(model) else model).buffers())
        self._copies = [buffer.detach().clone() for buffer in self._buffers]
        hub = self._runner.message_hub
        self._kept = {key: hub.get_info(key) for key in self._infos}

    def begin_step(self) -> None:
        """Count from here: batches that did not complete the update have left the weights."""
        if self._is_on:
            self._backwards = self._count()

    def save(self) -> None:
        """Save the state before this iteration, if no backward pass has completed."""
        if self._backwards is None or self._count() != self._backwards:
            return
        with torch.no_grad():
            for buffer, copy in zip(self._buffers, self._copies):
                buffer.copy_(copy)
        for key, value in self._kept.items():
            self._runner.message_hub.update_info(key, value)
        try:
            save_state(self._runner)
        except Exception as error:  # the one that ends the run counts
            self._runner.logger.error(f'No checkpoint of iteration {self._runner.iter}: {error}')

    def _count(self) -> list[int] | None:
        """Return the backward passes completed so far, of each of mmengine's wrappers."""
        wrapper = self._runner.optim_wrapper
        wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
        counts: list[Any] = [getattr(one, '_inner_count', None) for one in wrappers]
        return None if None in counts else counts  # a wrapper of another kind does not count
