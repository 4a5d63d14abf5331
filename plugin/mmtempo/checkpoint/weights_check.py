"""End a training whose weights are not finite, before they are published or evaluated."""

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
    """Checks of the weights of one training, and of the points at which they end it.

    ===============  ========================================================================
    save             `of_copies`: the writer thread checks the copies before it writes them
    evaluation       `begin`: the device computes flags, which are read after they arrive
    iteration        `poll`: with a single process, bad weights end the run
    synchronization  `stop`: several processes synchronize before a save or an evaluation,
                     after an evaluation and at the end of the training, and end together
    ===============  ========================================================================

    Only the main process has copies, so with several processes a bad copy ends the run at the next
    synchronization.

    Args:
        runner: Runner of the training. Its weights are read, which waits for the device.
        scalars: Losses, which are read first, since they may have been bad earlier.
        watch: Receiver of the results, which ends the run or warns.
    """

    def __init__(self, runner: Any, scalars: ScalarBuffer, watch: NonFiniteWatch) -> None:
        self._judged = JudgedWeights(unwrapped(runner.model))
        self._scalars, self._watch = scalars, watch
        self._look: tuple[int, WeightsLook] | None = None
        self._refused: NonFiniteWeights | None = None  # set by the writer thread
        self._group: Any = None
        if get_world_size() > 1 and torch.distributed.get_backend() != 'gloo':
            # gloo communicates between the hosts, so it waits for no device.
            self._group = torch.distributed.new_group(backend='gloo')

    @staticmethod
    def of(runner: Any) -> WeightsCheck | None:
        """Return the check of a runner's `SparseRuntimeInfoHook` during a training, or None."""
        checks = (getattr(hook, 'weights', None) for hook in runner.hooks)
        return next((one for one in checks if isinstance(one, WeightsCheck)), None)

    def of_copies(self, runner: Any) -> Callable[[list], None]:
        """Return a function that raises `NonFiniteWeights` for bad copies, in any thread.

        With `on_nonfinite='warn'` the run continues, and the save counts as failed.
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
        """Start to check the current weights, without waiting for the device."""
        self._scalars.fetch(wait=False)
        self._look = self._scalars.iteration, self._judged.look(unwrapped(runner.model))

    def poll(self) -> None:
        """Act on the flags that have arrived; with several processes, on the losses only."""
        if get_world_size() == 1:
            self._take(wait=False)
        self._scalars.check()

    def stop(self, wait: bool = False) -> None:
        """Act on the flags that have arrived, in all processes; all of them must call this.

        Args:
            wait: Whether to wait for flags that have not arrived. Defaults to False.
        """
        self._scalars.fetch(wait=False)
        self._take(wait)
        if get_world_size() > 1:
            flag = torch.tensor([float(self._watch.is_bad)])
            all_reduce(flag, 'max', self._group)
            if flag.item() and not self._watch.is_bad:
                self._watch.found(self._scalars.iteration, 'in another process; see its log')
        self._scalars.check()

    def look(self, runner: Any, together: bool = True) -> None:
        """Check losses and weights now, and wait for the device.

        Args:
            runner: Runner of the training.
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
            self._scalars.fetch()  # a loss that was bad earlier is the cause to report
            what = f'{shortened(names)} of the model, after finite losses'
            self._watch.found(iteration, what, in_weights=True)


def _bad_in(checkpoints: list[dict], rules: dict[str, bool]) -> list[str]:
    copies: dict[int, tuple[str, Any]] = {}  # several files share copies
    for checkpoint in checkpoints:
        # EMAHook saves the averages as `state_dict`, and the model's own weights separately.
        for part in ('state_dict', 'ema_state_dict'):  # a hook of a user may drop either part
            for name, copy in checkpoint.get(part, {}).items():
                copies[id(copy)] = name.removeprefix('module.'), copy
    return list(dict.fromkeys(bad_copies(copies.values(), rules)))


def saves_copies(hook: Any) -> bool:
    """Return whether the writer thread checks what a hook saves, so that no other check is due."""
    return getattr(hook, 'saves_copies', False)


def is_copied_now(runner: Any) -> bool:
    """Return whether the checkpoint that is being built is checked by the writer thread."""
    return any(getattr(hook, 'is_collecting', False) for hook in runner.hooks)


def await_saves(runner: Any) -> None:
    """Wait until each save in progress is checked and durable, or has failed."""
    for hook in runner.hooks:
        if saves_copies(hook):
            hook.await_save()
