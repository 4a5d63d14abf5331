"""Views of a runner for hooks of mmengine that log later, or through another visualizer."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from mmengine.logging import MessageHub

from .guarded_scalars import GuardedScalars
from .scalar_buffer import ScalarBuffer


class RunnerView:
    """A runner with another visualizer.

    Args:
        runner: Provides all other attributes.
        visualizer: Replaces `runner.visualizer`.
    """

    def __init__(self, runner: Any, visualizer: GuardedScalars) -> None:
        self._runner, self.visualizer = runner, visualizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class LogPoint(RunnerView):
    """A runner as it is at a log point, for a line that is written some iterations later.

    Args:
        runner: The runner; its iteration, epoch and runtime infos are copied now.
        scalars: The scalars of its training, whose copy to the host is started now.
        visualizer: Replaces `runner.visualizer`.
    """

    def __init__(self, runner: Any, scalars: ScalarBuffer, visualizer: GuardedScalars) -> None:
        super().__init__(runner, visualizer)
        self.scalars, self.window = scalars, scalars.send()
        self.iter, self.epoch = runner.iter, runner.epoch
        # Under DDP, mmengine asks the model's device for the peak of memory, and waits for it.
        self.model = None
        self._infos = dict(runner.message_hub.runtime_info)

    @cached_property
    def message_hub(self) -> MessageHub:
        """A hub with the values of the log point; read it after the window has arrived."""
        return MessageHub('log point', log_scalars=self.window.histories, runtime_info=self._infos)
