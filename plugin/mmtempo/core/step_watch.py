"""Where the parts of a training step end, as torch's own hooks tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from .timeline import Timeline

OUTSIDE = 'unexplained'
TO_DEVICE, FORWARD, BACKWARD, STEP = 'to_device', 'forward', 'backward', 'step'
# Of models that are never called as a whole, as those of several networks in turn.
BOTH = 'forward and backward'
# What ends where the model, or an optimizer, is called: while the model has not been called in
# this step, after it was, and where an optimizer's step has followed.
UNCALLED = {FORWARD: TO_DEVICE, STEP: BOTH}
CALLED = {FORWARD: BACKWARD, STEP: BACKWARD}
STEPPED = {FORWARD: OUTSIDE, STEP: BACKWARD}


class StepWatch:
    """Marks where the parts of a training step end: all since the last mark was that part.

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
        timeline: What is marked where a part ends.
        then: Called with the part's name as well. Defaults to None.

    Attributes:
        watching: Whether it is between `begin` and `end`.
        steps: How many steps of optimizers have ended, ever.
        phases: By part its phase; with `log`, `clock` and `then` what a mark needs. This and the
            rest are for the hooks.
        inside: Which parts are going on, the innermost last.
        before: What ends where the model, or an optimizer, is called next.
        rest: What ends with the step.
    """

    def __init__(self, timeline: Timeline, then: Callable[[str], None] | None = None) -> None:
        self.watching = False
        self.steps = 0
        self.phases = _Phases(timeline)
        self.log, self.clock, self.then = timeline.log, timeline.clock, then
        self.inside: list[str] = []
        self.before, self.rest = UNCALLED, BOTH
        self._handles: list[Any] = []

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
                optimizer.register_step_pre_hook(_Enter(self, STEP)),
                optimizer.register_step_post_hook(_Leave(self, STEP)),
            ]
        return True

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """A step begins; does nothing where hooks are not installed."""
        self.watching = bool(self._handles)
        self.inside.clear()
        self.before, self.rest = UNCALLED, BOTH

    def end(self) -> None:
        """It has ended: what is left belongs to the part that has not."""
        if self.watching:
            self.watching = False
            self.inside.clear()
            self.log += (self.phases[self.rest], self.clock())
            if self.then is not None:
                self.then(self.rest)

    def close(self) -> None:
        """Take all hooks away again."""
        self.watching = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch_calls(self, module: nn.Module) -> None:
        self._handles += [
            module.register_forward_pre_hook(_Enter(self, FORWARD), prepend=True),
            module.register_forward_hook(_Leave(self, FORWARD), always_call=True),
        ]


class _Phases(dict):
    """By part its phase, which is there from when that first ends."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def __missing__(self, part: str) -> int:
        phase = self[part] = self._timeline.phase(part)
        return phase


class _Call:
    """A hook of a module or an optimizer, of which a copy, or what a file has of it, is none.

    Each is called once an iteration at least, so it does all itself, marks included.
    """

    def __init__(self, watch: StepWatch, part: str) -> None:
        self._watch, self._part = watch, part

    def __reduce__(self) -> tuple:
        return _Nothing, ()


class _Enter(_Call):
    def __call__(self, *args: Any) -> None:
        # First of all: then nothing else of this gets into a graph. `is_compiling` knows of exports
        # as well, which are no steps, and costs three times as much.
        if is_dynamo_compiling():
            return
        watch, part = self._watch, self._part
        if not watch.watching:
            return
        inside = watch.inside
        ended = inside[-1] if inside else watch.before[part]
        inside.append(part)
        if ended == part:
            return  # one within another
        watch.log += (watch.phases[ended], watch.clock())
        if watch.then is not None:
            watch.then(ended)


class _Leave(_Call):
    def __call__(self, *args: Any) -> None:
        if is_dynamo_compiling():
            return
        watch, part = self._watch, self._part
        inside = watch.inside
        if not inside:
            return
        inside.pop()
        if inside and inside[-1] == part:
            return
        watch.log += (watch.phases[part], watch.clock())
        if watch.then is not None:
            watch.then(part)
        if part == FORWARD:
            watch.before, watch.rest = CALLED, BACKWARD
            return
        watch.rest = STEP
        watch.steps += 1
        if watch.before is CALLED:
            watch.before = STEPPED


class _Nothing:
    """What a copy has instead."""

    def __call__(self, *args: Any) -> None:
        pass


def layers_of(model: nn.Module) -> list[nn.Module]:
    """A model and what it wraps, as for distributed training, the innermost last."""
    layers = [model]
    while True:
        children = list(layers[-1].children())
        if len(children) != 1 or getattr(layers[-1], 'module', None) is not children[0]:
            return layers
        layers.append(children[0])
