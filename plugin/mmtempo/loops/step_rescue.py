"""Save the state before an iteration that fails because another process has exited."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.dist import is_distributed

from mmtempo.utils.runner import unwrapped, wrappers_of

from .saving import save_state


class StepRescue:
    """A copy of what an iteration changes before its update, to undo and save it on failure.

    An error of the backward pass, as gloo raises it if another process has exited, comes before
    the optimizer's step: weights are still those of the previous iteration. The forward pass has
    already changed buffers such as running statistics, so they are copied before it.

    It is active over gloo with several processes only: NCCL fails on the device, whose state is
    unknown afterwards.

    Args:
        runner: The runner of the training.
        infos: Keys of the message hub that an iteration changes before its update.
    """

    def __init__(self, runner: Any, infos: tuple[str, ...]) -> None:
        self._runner, self._infos = runner, infos
        distributed = torch.distributed
        is_shared = is_distributed() and distributed.get_world_size() > 1
        self._is_active = is_shared and distributed.get_backend() == 'gloo'
        self._buffers: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._kept_infos: dict[str, Any] = {}
        self._backwards: list[int] | None = None

    def begin(self) -> None:
        """Copy the state. Call it before the forward pass, and before `infos` change."""
        if not self._is_active:
            return
        self._buffers = list(unwrapped(self._runner.model).buffers())
        self._copies = [buffer.detach().clone() for buffer in self._buffers]
        hub = self._runner.message_hub
        self._kept_infos = {key: hub.get_info(key) for key in self._infos}

    def begin_step(self) -> None:
        """Count backward passes from here on.

        Earlier batches of the same iteration did not complete the update: they have not changed
        the weights.
        """
        if self._is_active:
            self._backwards = self._count()

    def save(self) -> None:
        """Undo and save the iteration, unless a backward pass has completed since `begin_step`.

        After a completed backward pass the optimizer may have stepped: there is no whole state.
        """
        if self._backwards is None or self._count() != self._backwards:
            return
        with torch.no_grad():
            for buffer, copy in zip(self._buffers, self._copies):
                buffer.copy_(copy)
        for key, value in self._kept_infos.items():
            self._runner.message_hub.update_info(key, value)
        try:
            save_state(self._runner)
        except Exception as error:  # must not replace the error that ends the run
            self._runner.logger.error(
                f'checkpoint: saving iteration {self._runner.iter} after a failed step failed: '
                f'{type(error).__name__}: {error}'
            )

    def _count(self) -> list[int] | None:
        """Return the completed backward passes of each of mmengine's optimizer wrappers."""
        counts: list[Any] = [
            getattr(wrapper, '_inner_count', None) for wrapper in wrappers_of(self._runner)
        ]
        return None if None in counts else counts  # wrappers of another kind do not count
