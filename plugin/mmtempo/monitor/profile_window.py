"""Measures the parts of a model for some iterations, and no longer."""

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
OUTSIDE = 'data_preprocessor'  # which `train_step` calls before the forward pass
MOST = 5  # parts that a line of the log names


def modules_of(options: dict, model: nn.Module) -> dict[str, nn.Module]:
    """Those that a hook's `stage_profile` names; ValueError says which is not there."""
    names: str | Sequence[str] = options.get('modules', 'auto')
    return find_modules(model, names, f'{KEY}.modules')


def line_of(found: dict[str, Any]) -> str:
    """What `ProfileWindow.take` gives, in a line of the log: the largest parts, and the rest."""
    *parts, rest = found['stages']
    largest = sorted(parts, key=lambda stage: -stage['share'])[:MOST]
    words = [_words(stage) for stage in largest]
    if len(parts) > MOST:
        words.append(f'{len(parts) - MOST} more')
    iterations = counted(found['iterations'], 'iteration')
    text = f'Forward pass by stage, in {iterations} up to {found["iter"]}: '
    text += ', '.join([*words, _words(rest)])
    never = found['never_called']
    if never:
        more = f' and {len(never) - MOST} more' if len(never) > MOST else ''
        text += f'; never called in it: {", ".join(never[:MOST])}{more}'
    return text


def _words(stage: dict[str, Any]) -> str:
    """By the clock that its share comes from."""
    seconds = stage['device_seconds']
    seconds = stage['seconds'] if seconds is None else seconds
    return f'{stage["name"]} {duration(seconds)} ({percent(stage["share"])})'


class ProfileWindow:
    """A `ForwardProfile` from one iteration on, for so many.

    Args:
        profile: Not started yet.
        begin: The first iteration that is measured.
        iterations: How many are.
        outside: Names of modules that nobody misses in the forward pass. Defaults to ().
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
        """As the config asks for it; ValueError names a module that is not there.

        Args:
            options: Of the hook's `stage_profile`.
            model: It may be wrapped, for distributed training.
            device: Of the model.
            first: The iteration that the training begins with; others are counted from there.
        """
        if options is None:
            return None
        modules = modules_of(options, model)
        outside = (OUTSIDE,) if options.get('modules', 'auto') == 'auto' else ()
        profile = ForwardProfile(model, modules, TimingEvents.of(device), cls.clock)
        begin, iterations = first + options.get('begin', 50), options.get('iterations', 100)
        return cls(profile, begin, iterations, outside)

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
        """Once, when some of it was measured: what each part takes, and what they leave."""
        profile = self._profile
        if self._state != 'measured':
            return None
        stages, rest = profile.result(), profile.rest()
        if rest is None:
            return None
        self._state = 'taken'
        return dict(
            iter=self._last,
            iterations=profile.iterations,
            asked=self._iterations,
            stages=[dict(stage._asdict()) for stage in (*stages, rest)],
            never_called=[name for name in profile.unseen() if name not in self._outside],
            by_children=profile.seen_by_children(),
        )

    def missed(self, first: int, last: int) -> str | None:
        """At the end of a training: why nothing was measured; None where something was.

        Args:
            first: The iteration that the training began behind.
            last: The one that it has ended with.
        """
        if self._profile.iterations or last <= first:
            return None
        begin = max(self._begin, first + 1)
        if self._state == 'waiting':
            where = f' (iteration {first})' if first else ''
            return (
                f'stage_profile has measured nothing: it begins with iteration {begin}, and the '
                f'training has ended with iteration {last}. Set {KEY}.begin below {last - first}; '
                f'it counts from where the training begins{where}'
            )
        return (
            f'stage_profile has measured nothing from iteration {begin} to {last}: the model was '
            'not called as a whole, in training mode and to its end, in any of them'
        )
