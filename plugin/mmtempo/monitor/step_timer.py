"""Where the parts of a training step end, as torch's own hooks tell."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer

from mmtempo.timing.timeline import Timeline
from mmtempo.utils.modules import layers_of
from mmtempo.utils.phases import BACKWARD, BOTH, FORWARD, OUTSIDE, STEP, TO_DEVICE, WHOLE

# What ends where the model is called, an optimizer asked for its step, or the training step over:
END = 'end'
# before the model was called;
UNCALLED = {FORWARD: TO_DEVICE, STEP: BOTH, END: BOTH}
# where nothing can be told apart;
COMPILED = {END: WHOLE}
# after it was called;
CALLED = dict.fromkeys((FORWARD, STEP, END), BACKWARD)
# after the only optimizer was asked for its step;
ASKED = dict.fromkeys((FORWARD, STEP, END), STEP)
# and after the step of one of several, with and without a call of the model.
STEPPED = {FORWARD: OUTSIDE, STEP: BACKWARD, END: STEP}
UNCALLED_STEPPED = {**UNCALLED, END: STEP}


class StepTimer:
    """Marks where the parts of a training step end: all since the last mark was that part.

    ::

        begin ... | model | ... | optimizer | ... end
            to_device  forward backward   step   step

    A module gets a `forward` of its own, which tells the watch, and an optimizer torch's hooks.
    They do nothing but between `begin` and `end`, so that an evaluation of the same model is no
    part of a step. Torch has hooks for modules as well: they take three times as long. Copies have
    none of it, but for replicas of `nn.parallel.replicate`, which call the original.

    - What comes before the model is called is its preprocessor, which brings the batch to the
      device. It is not watched itself.
    - A model that is called several times charges each call. One within another is a part of it,
      but for another part's, as that of a model which an optimizer calls.
    - 'backward' lasts until an optimizer is asked for its step, so clipping belongs to it, and
      the wait of a `GradScaler` that reads whether gradients have overflowed. Where no step
      follows, as when gradients accumulate or have overflowed, it lasts until `end`, or until
      the model is called again, as for the next batch of an update: what brings that batch to the
      device belongs to it then, since nobody on the host sees where a backward pass ends. Between
      the calls of a model that is called several times for one loss, it is of little account.
    - 'step' lasts until `end`, so `zero_grad` belongs to it, or until the model is called again.
      Of several optimizers, or with a closure, it ends when the optimizer has done it.
    - Where the model itself is not called, but parts of it, it is 'forward and backward' that
      lasts until the step.
    - Torch orders an optimizer's hooks as they came: what one from before ours takes is
      charged to 'backward', and what a later one takes to 'step'. What hooks of the model take
      is charged to what lies before its call, or behind it.

    Args:
        timeline: What is marked where a part ends.
        then: Called with the part's name as well. Defaults to None.

    Attributes:
        watching: Whether it is between `begin` and `end`.
    """

    def __init__(self, timeline: Timeline, then: Callable[[str], None] | None = None) -> None:
        self.watching = False
        self._phases = _Phases(timeline)
        self._log, self._clock, self._then = timeline.log, timeline.clock, then
        self._inside: list[str] = []  # what is going on, the innermost last
        self._state = self._at_begin = UNCALLED
        self._is_installed = self._sees_ends = False
        self._handles: list[Any] = []
        # They know their training, which may end without a word; nothing here is to keep it.
        self._modules: list[Callable[[], nn.Module | None]] = []

    def install(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> bool:
        """Give them their hooks; whether that is possible.

        It is not where `train_step` is compiled, as mmengine's `compile` does: hooks would be
        traced into its graph, or break that. Then a step is one part, 'train_step'.

        Args:
            model: It may be wrapped, for distributed training.
            optimizers: All that update it.
        """
        self.close()
        layers = layers_of(model)
        self._is_installed, self._sees_ends, self._at_begin = True, False, UNCALLED
        if any('train_step' in vars(layer) for layer in layers):
            self._at_begin = COMPILED
            return False
        for layer in layers:
            self._watch_calls(layer)
            if isinstance(layer, nn.DataParallel):
                break  # it calls copies of what is within, in other threads
        optimizers = list(optimizers)
        is_only_one = len(optimizers) == 1
        for optimizer in optimizers:
            self._handles.append(
                optimizer.register_step_pre_hook(self._asking if is_only_one else self._entering)
            )
            if not is_only_one:
                self._see_its_end(optimizer)
        return True

    def begin(self, *args: Any) -> None:
        """A step begins; does nothing before `install`, and after `close`."""
        self.watching = self._is_installed
        self._inside.clear()
        self._state = self._at_begin

    def end(self, *args: Any) -> None:
        """It has ended: what is left belongs to the part that has not."""
        if self.watching:
            self.watching = False
            self._inside.clear()
            ended = self._state[END]
            self._log += (self._phases[ended], self._clock())
            if self._then is not None:
                self._then(ended)

    def close(self) -> None:
        """Take all hooks away again."""
        self.watching = self._is_installed = False
        for handle in self._handles:
            handle.remove()
        for known in self._modules:
            own = vars(known() or self)
            ours = own.get('forward')
            if not isinstance(ours, _Forward) or ours.watch is not self:
                continue  # the module is gone, or somebody has put another one around ours
            while isinstance(ours.forward, _Forward) and not ours.forward.watch._is_installed:
                ours = ours.forward  # of one that was closed while this was around it
            if ours.was_own:
                own['forward'] = ours.forward
            else:
                del own['forward']
        self._handles, self._modules = [], []

    def _watch_calls(self, module: nn.Module) -> None:
        own = vars(module)
        ours = _Forward(self, module.forward, 'forward' in own)
        own['forward'] = functools.update_wrapper(ours, module.forward, updated=())
        self._modules.append(weakref.ref(module))

    def _mark(self, part: str) -> None:
        self._log += (self._phases[part], self._clock())
        if self._then is not None:
            self._then(part)

    def _see_its_end(self, optimizer: Optimizer) -> None:
        self._sees_ends = True
        self._handles.append(optimizer.register_step_post_hook(self._leaving))

    def _asking(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """The only optimizer is asked for its step."""
        # First of all: then nothing else of this gets into a graph. `is_compiling` knows of exports
        # as well, which are no steps, and costs three times as much.
        if is_dynamo_compiling() or not self.watching:
            return
        if len(args) > 1 or kwargs:  # a closure: it may call the model
            if not self._sees_ends:
                self._see_its_end(optimizer)
            self._entering()
            return
        ended = self._inside[-1] if self._inside else self._state[STEP]
        self._log += (self._phases[ended], self._clock())
        if self._then is not None:
            self._then(ended)
        self._state = ASKED

    def _entering(self, *args: Any) -> None:
        """One of several optimizers begins its step, or one that was given a closure."""
        if not is_dynamo_compiling() and self.watching:
            self._mark(self._inside[-1] if self._inside else self._state[STEP])
            self._inside.append(STEP)

    def _leaving(self, *args: Any) -> None:
        """It has done it."""
        if not is_dynamo_compiling() and self._inside:
            self._mark(self._inside.pop())
            was_called = self._state is CALLED or self._state is STEPPED
            self._state = STEPPED if was_called else UNCALLED_STEPPED


class _Phases(dict):
    """By part its phase, which is there from when that first ends."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline

    def __missing__(self, part: str) -> int:
        phase = self[part] = self._timeline.phase(part)
        return phase


class _Forward:
    """A module's `forward` that tells a watch; a copy, or what a file has of it, does not.

    Args:
        watch: What is told.
        forward: As it was.
        was_own: Whether the module itself had that, and not its class.
    """

    def __init__(self, watch: StepTimer, forward: Callable[..., Any], was_own: bool) -> None:
        self.watch, self.forward, self.was_own = watch, forward, was_own

    # Once an iteration, as what an optimizer calls: so both mark by themselves, without a call.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watch, forward = self.watch, self.forward
        if is_dynamo_compiling() or not watch.watching:
            return forward(*args, **kwargs)
        inside = watch._inside
        ended = inside[-1] if inside else watch._state[FORWARD]
        if ended == FORWARD:
            return forward(*args, **kwargs)  # one within another
        log, clock, phases, then = watch._log, watch._clock, watch._phases, watch._then
        inside.append(FORWARD)
        log += (phases[ended], clock())
        if then is not None:
            then(ended)
        try:
            return forward(*args, **kwargs)
        finally:
            if inside:
                inside.pop()
                log += (phases[FORWARD], clock())
                if then is not None:
                    then(FORWARD)
                watch._state = CALLED

    def __reduce__(self) -> tuple:
        return _itself, (self.forward,)


def _itself(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward
