"""Measure the modules of a model for a window of iterations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mmtempo.device.event_timer import TimingEvents
from mmtempo.utils.modules import find_modules
from mmtempo.utils.units import counted, duration, percent

from .forward_profile import ForwardProfile

KEY = 'default_hooks.timer.stage_profile'
OUTSIDE = 'data_preprocessor'  # `train_step` calls it before the forward pass
MOST = 5  # modules that the log line names


def modules_of(options: dict, model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that `stage_profile` names; raise a ValueError if one does not exist."""
    names: str | Sequence[str] = options.get('modules', 'auto')
    return find_modules(model, names, f'{KEY}.modules')


def line_of(profile: dict[str, Any]) -> str:
    """Format a result of `ProfileWindow.take` as a log line: the largest modules, and the rest."""
    *modules, rest = profile['stages']
    largest = sorted(modules, key=lambda module: -module['share'])[:MOST]
    words = [_words(module) for module in largest]
    if len(modules) > MOST:
        words.append(f'{len(modules) - MOST} more')
    iterations = counted(profile['iterations'], 'iteration')
    text = f'Forward pass by module ({iterations} up to iteration {profile["iter"]}): '
    text += ', '.join([*words, _words(rest)])
    never = profile['never_called']
    if never:
        more = f' and {len(never) - MOST} more' if len(never) > MOST else ''
        text += f'; never called: {", ".join(never[:MOST])}{more}'
    return text


def _words(module: dict[str, Any]) -> str:
    """Format name, seconds and share, with the seconds of the clock that gave the share."""
    seconds = module['device_seconds']
    seconds = module['seconds'] if seconds is None else seconds
    return f'{module["name"]} {duration(seconds)} ({percent(module["share"])})'


class ProfileWindow:
    """A `ForwardProfile` that measures a window of iterations.

    Args:
        profile: Profile that has not been started.
        begin: Number of the first measured iteration.
        iterations: Number of measured iterations.
        outside: Names of modules that are not called within the forward pass, and are therefore
            not reported as never called. Defaults to ().
    """

    clock = staticmethod(time.perf_counter_ns)

    def __init__(
        self, profile: ForwardProfile, begin: int, iterations: int, outside: Sequence[str] = ()
    ) -> None:
        self._profile, self._begin, self._iterations = profile, begin, iterations
        self._outside = outside
        self._state = 'waiting'
        self._last = 0

    @classmethod
    def of(
        cls, options: dict | None, model: nn.Module, device: torch.device, first: int
    ) -> ProfileWindow | None:
        """Return the window that the config asks for; None if it asks for none.

        Args:
            options: Value of the hook's `stage_profile`; ValueError if it names a module that does
                not exist.
            model: The model, which may be wrapped for distributed training.
            device: Device of the model.
            first: Number of iterations done before this training; `begin` counts from there.
        """
        if options is None:
            return None
        modules = modules_of(options, model)
        outside = (OUTSIDE,) if options.get('modules', 'auto') == 'auto' else ()
        profile = ForwardProfile(model, modules, TimingEvents.of(device), cls.clock)
        begin, iterations = first + options.get('begin', 50), options.get('iterations', 100)
        return cls(profile, begin, iterations, outside)

    def begin(self, iteration: int) -> None:
        """Start measuring if the window begins; call it before a training step."""
        if self._state == 'waiting' and iteration >= self._begin:
            self._profile.start()
            self._state = 'measuring'

    def end(self, iteration: int) -> None:
        """Count the iteration and stop after the last one; call it after a training step."""
        if self._state != 'measuring':
            return
        self._profile.end_iteration()
        self._last = iteration
        if self._profile.iterations >= self._iterations:
            self.close()

    def close(self) -> None:
        """Stop measuring and remove all hooks."""
        if self._state == 'measuring':
            self._profile.close()
            self._state = 'measured'

    def take(self) -> dict[str, Any] | None:
        """Return the time of each module and the rest, once; None while there is nothing new."""
        profile = self._profile
        if self._state != 'measured':
            return None
        modules, rest = profile.result(), profile.rest()
        if rest is None:
            return None
        self._state = 'taken'
        return dict(
            iter=self._last,
            iterations=profile.iterations,
            asked=self._iterations,
            stages=[dict(module._asdict()) for module in (*modules, rest)],
            never_called=[name for name in profile.unseen() if name not in self._outside],
            by_children=profile.seen_by_children(),
        )

    def missed(self, first: int, last: int) -> str | None:
        """Return a warning if nothing was measured until the end of a training, else None.

        Args:
            first: Number of iterations done before this training.
            last: Number of its last iteration.
        """
        if self._profile.iterations or last <= first:
            return None
        begin = max(self._begin, first + 1)
        if self._state == 'waiting':
            start = f'iteration {first}, where this training started' if first else 'iteration 0'
            return (
                f'stage_profile: nothing was measured, because the window begins with iteration '
                f'{begin} and the training ended with iteration {last}; set {KEY}.begin below '
                f'{last - first} (it counts from {start})'
            )
        return (
            f'stage_profile: nothing was measured from iteration {begin} to {last}, because no '
            'iteration called the whole model in training mode and completed the call'
        )
