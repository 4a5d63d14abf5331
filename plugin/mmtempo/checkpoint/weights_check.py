"""Ends a training whose weights are not finite, before they are published or evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size

from mmtempo.logging.nonfinite import NonFiniteWatch
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.utils.runner import unwrapped

from .finite_weights import JudgedWeights, NonFiniteWeights, WeightsLook, bad_copies, shortened


class WeightsCheck:
    """The verdicts on the weights of one training, and the point at which they end it.

    ==========  =========================================================================
    save        `of_copies`: the writer's thread judges the copies before it writes
    evaluation  `begin`: the device computes flags, which are read once they have arrived
    iteration   `poll`: where there is one process, a bad verdict ends the run
    meeting     `stop`: several processes agree before a save or an evaluation, after an
                evaluation and at the end of the training, and end the run together
    ==========  =========================================================================

    Only the main process has copies, so with several of them a bad copy ends the run at the next
    meeting.

    Args:
        runner: The training; its weights are read, and the device waited for.
        scalars: The losses, which are read first: they may have been bad before.
        watch: Takes the verdicts, and ends the run or warns.
    """

    def __init__(self, runner: Any, scalars: ScalarBuffer, watch: NonFiniteWatch) -> None:
        self._judged = JudgedWeights(unwrapped(runner.model))
        self._scalars, self._watch = scalars, watch
        self._look: tuple[int, WeightsLook] | None = None
        self._refused: NonFiniteWeights | None = None  # set by the writer's thread
        self._group: Any = None
        if get_world_size() > 1 and torch.distributed.get_backend() != 'gloo':
            # An exchange between the hosts alone: it waits for no device.
            self._group = torch.distributed.new_group(backend='gloo')

    @staticmethod
    def of(runner: Any) -> WeightsCheck | None:
        """Return that of a runner's `SparseRuntimeInfoHook`, while it trains."""
        checks = (getattr(hook, 'weights', None) for hook in runner.hooks)
        return next((one for one in checks if isinstance(one, WeightsCheck)), None)

    def of_copies(self, runner: Any) -> Callable[[list], None]:
        """Return a function that raises NonFiniteWeights for bad copies, in any thread.

        With `on_nonfinite='warn'` the run continues, and the save has failed like any other.
        """
        rules, iteration = self._judged.rules(unwrapped(runner.model)), self._scalars.iteration
        ends_run = self._watch.action != 'warn'

        def check(checkpoints: list[dict]) -> None:
            names = _bad_in(checkpoints, rules)
            if names:
                error = NonFiniteWeights(names, iteration, ends_run)
                if ends_run:
                    self._refused = error
                raise error

        return check

    def begin(self, runner: Any) -> None:
        """Start to judge the weights as they are now; waits for nothing."""
        self._scalars.fetch(wait=False)
        self._look = self._scalars.iteration, self._judged.look(unwrapped(runner.model))

    def poll(self) -> None:
        """Act on what has arrived; processes that have to agree act on losses only."""
        if get_world_size() == 1:
            self._take(wait=False)
        self._scalars.check()

    def stop(self, wait: bool = False) -> None:
        """Act on what has arrived, in all processes at once; all of them must call it.

        Args:
            wait: Whether to wait for the flags that were begun. Defaults to False.
        """
        self._scalars.fetch(wait=False)
        self._take(wait)
        if get_world_size() > 1:
            flag = torch.tensor([float(self._watch.is_bad)])
            all_reduce(flag, 'max', self._group)
            if flag.item() and not self._watch.is_bad:
                self._watch.found(
                    self._scalars.iteration, 'in another process, whose log says more'
                )
        self._scalars.check()

    def look(self, runner: Any, together: bool = True) -> None:
        """Judge losses and weights now; waits for the device.

        Args:
            runner: The training.
            together: Whether all processes call this. Defaults to True.
        """
        self._scalars.fetch()
        self.begin(runner)
        if together:
            self.stop(wait=True)
        else:
            self._take(wait=True)
            self._scalars.check()

    def _take(self, wait: bool) -> None:
        if self._look is not None and (wait or self._look[1].arrived):
            (iteration, look), self._look = self._look, None
            self._note(iteration, look.bad())
        if self._refused is not None:
            self._note(self._refused.iteration, self._refused.names)

    def _note(self, iteration: int, names: list[str]) -> None:
        if names:
            self._scalars.fetch()  # where a loss was bad before, that is what happened
            what = f'{shortened(names)} of the model, after losses that were finite'
            self._watch.found(iteration, what, in_weights=True)


def _bad_in(checkpoints: list[dict], rules: dict[str, bool]) -> list[str]:
    copies: dict[int, tuple[str, Any]] = {}  # several files share them
    for checkpoint in checkpoints:
        # EMAHook saves the averages under the names of the model, and the model's own apart.
        for part in ('state_dict', 'ema_state_dict'):  # a hook of a user may drop either
            for name, copy in checkpoint.get(part, {}).items():
                copies[id(copy)] = name.removeprefix('module.'), copy
    return list(dict.fromkeys(bad_copies(copies.values(), rules)))


def saves_copies(hook: Any) -> bool:
    """Whether what a hook saves is judged by the writer's thread, and nothing else."""
    return getattr(hook, 'saves_copies', False)


def is_copied_now(runner: Any) -> bool:
    """Whether the checkpoint that hooks look at now goes to such a writer."""
    return any(getattr(hook, 'is_collecting', False) for hook in runner.hooks)


def await_saves(runner: Any) -> None:
    """Wait until each save on its way is judged and durable, or has failed."""
    for hook in runner.hooks:
        if saves_copies(hook):
            hook.await_save()
