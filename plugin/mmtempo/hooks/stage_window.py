"""Measures the parts of a model for some iterations, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..core.device_clock import TimingEvents
from ..core.stage_profile import StageProfile, find_modules

KEY = 'default_hooks.timer.stage_profile'


def modules_of(options: dict, model: nn.Module) -> dict[str, nn.Module]:
    """Those that a hook's `stage_profile` names; ValueError says which is not there."""
    names: str | Sequence[str] = options.get('modules', 'auto')
    return find_modules(model, names, f'{KEY}.modules')


class StageWindow:
    """A `StageProfile` from one iteration on, for so many.

    Args:
        profile: Not started yet.
        begin: The first iteration that is measured.
        iterations: How many are.
    """

    def __init__(self, profile: StageProfile, begin: int, iterations: int) -> None:
        self._profile, self._begin, self._iterations = profile, begin, iterations
        self._state = 'waiting'
        self._last = 0

    @classmethod
    def of(
        cls, options: dict | None, model: nn.Module, device: torch.device, first: int
    ) -> StageWindow | None:
        """As the config asks for it; ValueError names a module that is not there.

        Args:
            options: Of the hook's `stage_profile`.
            model: It may be wrapped, for distributed training.
            device: Of the model.
            first: The iteration that the training begins with; others are counted from there.
        """
        if options is None:
            return None
        profile = StageProfile(model, modules_of(options, model), TimingEvents.of(device))
        return cls(profile, first + options.get('begin', 50), options.get('iterations', 100))

    def begin(self, iteration: int) -> None:
        """Before a training step."""
        if self._state == 'waiting' and iteration >= self._begin:
            self._profile.start()
            self._state = 'measuring'

    def end(self, iteration: int) -> None:
        """Behind it."""
        if self._state != 'measuring':
            return
        self._profile.end_iteration()
        self._last = iteration
        if self._profile.iterations >= self._iterations:
            self.close()

    def close(self) -> None:
        """No more is measured, and no hook is left."""
        if self._state == 'measuring':
            self._profile.close()
            self._state = 'measured'

    def take(self) -> dict[str, Any] | None:
        """Once, when it was measured: what each part takes."""
        if self._state != 'measured':
            return None
        self._state = 'taken'
        stages = [dict(stage._asdict()) for stage in self._profile.result()]
        return dict(iter=self._last, iterations=self._profile.iterations, stages=stages)
