"""Measure the parts of a training step through hooks of modules and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.modules import layers_of
from mmtempo.utils.phases import BACKWARD, BOTH, FORWARD, OUTSIDE, STEP, TO_DEVICE, WHOLE

# Each state maps an event (call of the model, step of an optimizer, end of the training step) to
# the part that ends there.
END = 'end'
# The model was not called yet.
UNCALLED = {FORWARD: TO_DEVICE, STEP: BOTH, END: BOTH}
# The step is compiled, and its parts cannot be separated.
COMPILED = {END: WHOLE}
# The model was called.
CALLED = dict.fromkeys((FORWARD, STEP, END), BACKWARD)
# The step of the only optimizer has begun.
STEPPING = dict.fromkeys((FORWARD, STEP, END), STEP)
# The step of one of several optimizers has ended, with and without a call of the model.
STEPPED = {FORWARD: OUTSIDE, STEP: BACKWARD, END: STEP}
UNCALLED_STEPPED = {**UNCALLED, END: STEP}


class StepTimer:
    """Timer that marks the end of each part of a training step in a timeline.

    ::

        begin ... | model | ... | optimizer | ... end
            to_device  forward backward   step   step

    The model gets torch's forward hooks, and each optimizer its step hooks. They are inactive
    outside of `begin` and `end`, so that an evaluation of the same model is no part of a step.
    Copies of the model are not timed.

    - 'to_device' is the time before the call of the model: its data preprocessor, which copies the
      batch to the device. The preprocessor itself has no hook.
    - 'forward' is each call of the model, with its pre-hooks, and with the forward hooks that were
      registered before ours. A nested call is part of the outer call, unless it happens in another
      part, as when an optimizer calls the model.
    - 'backward' lasts until the step of an optimizer begins. It includes gradient clipping, and the
      synchronization in which a `GradScaler` reads whether gradients overflowed. Without a step,
      because gradients accumulate or overflowed, it lasts until `end` or the next call of the
      model. It then includes the copy of the next batch to the device, because the end of a
      backward pass is not visible on the host. Between several calls of the model for one loss,
      the time is negligible.
    - 'step' lasts until `end`, so it includes `zero_grad`, or until the next call of the model.
      With several optimizers, or a closure, it ends with the optimizer's step.
    - 'forward and backward' lasts until the step where parts of the model are called instead of
      the model.
    - Torch calls the hooks of an optimizer in the order of registration: hooks registered before
      ours are charged to 'backward', later ones to 'step'.

    Args:
        timeline: Timeline that gets the marks.
        then: Called with the name of each part that ends. Defaults to None.

    Attributes:
        watching: Whether a step is between `begin` and `end`.
    """

    def __init__(self, timeline: Timeline, then: Callable[[str], None] | None = None) -> None:
        self.watching = False
        self._phases = _Phases(timeline)
        self._log, self._clock, self._then = timeline.log, timeline.clock, then
        self._inside: list[str] = []  # running parts, the innermost last
        self._state = self._at_begin = UNCALLED
        self._is_installed = self._sees_ends = False
        # Handles reference their module weakly: a failed training ends without `close`.
        self._handles: list[Any] = []

    def install(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> bool:
        """Add the hooks, and return whether the parts of a step can be separated.

        They cannot where `train_step` is compiled, as by mmengine's `compile`: hooks would be
        traced into its graph, or break it. A step is then the single part 'train_step'.

        Args:
            model: The model, which may be wrapped for distributed training.
            optimizers: All optimizers that update it.
        """
        self.close()
        layers = layers_of(model)
        self._is_installed, self._sees_ends, self._at_begin = True, False, UNCALLED
        if any('train_step' in vars(layer) for layer in layers):
            self._at_begin = COMPILED
            return False
        for layer in layers:
            self._handles += [
                layer.register_forward_pre_hook(_ModuleHook(self._on_call), prepend=True),
                layer.register_forward_hook(_ModuleHook(self._on_return), always_call=True),
            ]
            if isinstance(layer, nn.DataParallel):
                break  # it calls copies of the inner modules, in other threads
        optimizers = list(optimizers)
        is_only_one = len(optimizers) == 1
        for optimizer in optimizers:
            self._handles.append(
                optimizer.register_step_pre_hook(
                    self._on_only_step if is_only_one else self._on_step
                )
            )
            if not is_only_one:
                self._add_post_hook(optimizer)
        return True

    def begin(self, *args: Any) -> None:
        """Begin a training step. No-op before `install` and after `close`."""
        self.watching = self._is_installed
        self._inside.clear()
        self._state = self._at_begin

    def end(self, *args: Any) -> None:
        """End the training step, and charge the remaining time to the part that is open."""
        if self.watching:
            self.watching = False
            self._inside.clear()
            self._mark(self._state[END])

    def close(self) -> None:
        """Remove all hooks."""
        self.watching = self._is_installed = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _mark(self, part: str) -> None:
        self._log += (self._phases[part], self._clock())
        if self._then is not None:
            self._then(part)

    def _add_post_hook(self, optimizer: Optimizer) -> None:
        self._sees_ends = True
        self._handles.append(optimizer.register_step_post_hook(self._on_step_end))

    def _on_call(self, *args: Any) -> None:
        """Handle the begin of a call of the model."""
        # Checked first, so that nothing else gets into a graph. `is_compiling` also covers exports,
        # which have no steps, and takes three times as long.
        if is_dynamo_compiling() or not self.watching:
            return
        ended = self._inside[-1] if self._inside else self._state[FORWARD]
        self._inside.append(FORWARD)
        if ended != FORWARD:  # else it is a nested call
            self._mark(ended)

    def _on_return(self, *args: Any) -> None:
        """Handle the end of a call of the model, also where it failed."""
        if is_dynamo_compiling() or not self._inside:
            return
        self._inside.pop()
        if not self._inside or self._inside[-1] != FORWARD:
            self._mark(FORWARD)
            self._state = CALLED

    def _on_only_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """Handle the begin of a step of the only optimizer."""
        if is_dynamo_compiling() or not self.watching:
            return
        if len(args) > 1 or kwargs:  # a closure, which may call the model
            if not self._sees_ends:
                self._add_post_hook(optimizer)
            self._on_step()
            return
        self._mark(self._inside[-1] if self._inside else self._state[STEP])
        self._state = STEPPING

    def _on_step(self, *args: Any) -> None:
        """Handle the begin of a step of one of several optimizers, or of a step with a closure."""
        if not is_dynamo_compiling() and self.watching:
            self._mark(self._inside[-1] if self._inside else self._state[STEP])
            self._inside.append(STEP)

    def _on_step_end(self, *args: Any) -> None:
        """Handle the end of such a step."""
        if not is_dynamo_compiling() and self._inside:
            self._mark(self._inside.pop())
            was_called = self._state is CALLED or self._state is STEPPED
            self._state = STEPPED if was_called else UNCALLED_STEPPED


class _Phases(dict):
    """Phase numbers by part, registered in the timeline when a part first ends."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def __missing__(self, part: str) -> int:
        phase = self[part] = self._timeline.phase(part)
        return phase


class _ModuleHook:
    """A hook of a module whose copies and pickles do nothing, as a copied model is not timed."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        self._hook(*args)

    def __reduce__(self) -> tuple:
        return _ModuleHook, (_nothing,)


def _nothing(*args: Any) -> None:
    pass
