"""Where the parts of a training step end, as torch's own hooks tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

OUTSIDE = 'unexplained'
TO_DEVICE, FORWARD, BACKWARD, STEP = 'to_device', 'forward', 'backward', 'step'
# Of models that are never called as a whole, as those of several networks in turn.
BOTH = 'forward and backward'


class StepWatch:
    """Calls `on(part)` where a part of a training step ends: all since the last call was that.

    ::

        begin ... | model | ... | optimizer | ... end
            to_device  forward backward   step   step

    Nothing is patched: modules and optimizers are given hooks, which do nothing but between
    `begin` and `end`, so that an evaluation of the same model is no part of a step.

    - What comes before the model is called is its preprocessor, which brings the batch to the
      device. It is not watched itself: each module that is costs several microseconds.
    - A model that is called several times charges each call. One within another is a part of it,
      but for another part's, as that of a model which an optimizer calls.
    - 'backward' lasts until an optimizer is asked for its step, so clipping belongs to it, and
      the wait of a `GradScaler` that reads whether gradients have overflowed. Where no step
      follows, as when gradients accumulate or have overflowed, it lasts until `end`, or until
      the model is called again, as for the next batch of an update: what brings that batch to the
      device belongs to it then, since nobody on the host sees where a backward pass ends. Between
      the calls of a model that is called several times for one loss, it is of little account.
    - What follows the last step up to `end`, that is `zero_grad`, belongs to 'step'.
    - Where the model itself is not called, but parts of it, it is 'forward and backward' that
      lasts until the step.
    - Torch orders an optimizer's hooks as they came: what one from before ours takes is
      charged to 'backward', and what a later one takes to 'step'.

    Args:
        on: Is called with the name of what has ended.

    Attributes:
        watching: Whether it is between `begin` and `end`.
    """

    def __init__(self, on: Callable[[str], None]) -> None:
        self.watching = False
        self._on = on
        self._handles: list[Any] = []
        self._inside: list[str] = []  # which parts are going on, the innermost last
        self._was_called = False
        self._rest = BOTH

    def install(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> bool:
        """Give them their hooks; whether that is possible.

        It is not where `train_step` is compiled, as mmengine's `compile` does: hooks would be
        traced into its graph, or break that.

        Args:
            model: It may be wrapped, for distributed training.
            optimizers: All that update it.
        """
        self.close()
        layers = layers_of(model)
        if any('train_step' in vars(layer) for layer in layers):
            return False
        for layer in layers:
            self._watch_calls(layer)
        for optimizer in optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(_Call(self._enter, STEP)),
                optimizer.register_step_post_hook(_Call(self._leave, STEP)),
            ]
        return True

    def begin(self) -> None:
        """A step begins; does nothing where hooks are not installed."""
        self.watching = bool(self._handles)
        self._inside.clear()
        self._was_called, self._rest = False, BOTH

    def end(self) -> None:
        """It has ended: what is left belongs to the part that has not."""
        if self.watching:
            self.watching = False
            self._inside.clear()
            self._on(self._rest)

    def close(self) -> None:
        """Take all hooks away again."""
        self.watching = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch_calls(self, module: nn.Module) -> None:
        self._handles += [
            module.register_forward_pre_hook(_Call(self._enter, FORWARD), prepend=True),
            module.register_forward_hook(_Call(self._leave, FORWARD), always_call=True),
        ]

    def _enter(self, part: str) -> None:
        # First of all: then nothing else of this gets into a graph.
        if is_compiling() or not self.watching:
            return
        if not self._inside:
            self._on(self._before(part))
        elif self._inside[-1] != part:
            self._on(self._inside[-1])
        self._inside.append(part)

    def _leave(self, part: str) -> None:
        if is_compiling() or not self._inside:
            return
        self._inside.pop()
        if self._inside and self._inside[-1] == part:
            return
        self._on(part)
        if part == FORWARD:
            self._was_called, self._rest = True, BACKWARD
        elif part == STEP:
            self._rest = STEP

    def _before(self, part: str) -> str:
        if part == FORWARD:
            if not self._was_called:
                return TO_DEVICE
            return BACKWARD if self._rest == BACKWARD else OUTSIDE
        return BACKWARD if self._was_called else BOTH


class _Call:
    """A hook of a module or an optimizer, of which a copy, or what a file has of it, is none."""

    def __init__(self, does: Callable[[str], None], part: str) -> None:
        self._does, self._part = does, part

    def __call__(self, *args: Any) -> None:
        self._does(self._part)

    def __reduce__(self) -> tuple:
        return _Call, (_nothing, self._part)


def _nothing(part: str) -> None:
    pass


def layers_of(model: nn.Module) -> list[nn.Module]:
    """A model and what it wraps, as for distributed training, the innermost last."""
    layers = [model]
    while True:
        children = list(layers[-1].children())
        if len(children) != 1 or getattr(layers[-1], 'module', None) is not children[0]:
            return layers
        layers.append(children[0])
