"""Finds the first iteration whose loss or gradient is no finite number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

GRAD_NORM = 'watch/grad_norm'
LOSS_SCALE = 'watch/loss_scale'
SKIPPED = 'watch/skipped'
LEAST_SCALE = 1e-6  # 36 overflows in a row, from where torch starts
ACTIONS = ('stop', 'warn', 'skip')


class NonFiniteError(FloatingPointError):
    """The training cannot go on: a loss or the gradient is nan or infinite."""


class NonFiniteWatch:
    """Looks at values that have left the device anyway.

    A loss is what has `loss` in its name, as in mmengine's `parse_losses`.

    Args:
        action: 'stop' raises NonFiniteError, 'warn' and 'skip' say so and go on; it is the
            optimizer wrapper that skips.
        warn: Where a warning goes.
        advice: What to do, for the end of the error.
    """

    def __init__(
        self, action: str, warn: Callable[[str], None], advice: Callable[[], str] = str
    ) -> None:
        if action not in ACTIONS:
            raise ValueError(
                f'default_hooks.runtime_info.on_nonfinite={action!r} is unknown; '
                f'use one of {", ".join(map(repr, ACTIONS))}'
            )
        self.action = action
        self._warn = warn
        self._advice = advice
        self._first: tuple[int, str] | None = None  # of those that nobody has been told of
        self._last, self._count = 0, 0
        self._is_fatal = False  # nothing is left to be skipped
        self._skipped: list[int] = []

    def look(self, iteration: int, values: Sequence[tuple[str, float, int]]) -> None:
        """Take in the values of an iteration, counted from 0."""
        total, is_lost = 0.0, False
        for key, value, _ in values:
            total += value
            if key == SKIPPED and value:
                self._skipped.append(iteration + 1)
            elif key == LOSS_SCALE and value < LEAST_SCALE:
                is_lost = True
        # The sum of finite numbers may still overflow, so a look at each of them decides.
        if is_lost or (
            not math.isfinite(total)
            and any(not math.isfinite(value) and _matters(key) for key, value, _ in values)
        ):
            self.found(iteration, _describe(values))

    def found(self, iteration: int, what: str, in_weights: bool = False) -> None:
        """Take note of something bad, in an iteration counted from 0."""
        self._is_fatal |= in_weights
        # Weights may be judged later than the losses that they have made nan.
        if self._first is None or iteration + 1 < self._first[0]:
            self._first = iteration + 1, what
        self._last = max(self._last, iteration + 1)
        self._count += 1

    @property
    def is_bad(self) -> bool:
        """Whether `check` has something to tell."""
        return self._first is not None

    def check(self) -> None:
        """Act on what was found since the last call."""
        skipped, self._skipped = self._skipped, []
        first, count = self._first, self._count
        self._first, self._count = None, 0
        if skipped:
            shown = ', '.join(map(str, skipped[:10]))
            more = f' and {len(skipped) - 10} more' if len(skipped) > 10 else ''
            self._warn(
                f'{len(skipped)} updates were skipped because of non-finite gradients, at '
                f'iterations {shown}{more}.'
            )
        if first is not None:
            found = f'Non-finite values at iteration {first[0]}: {first[1]}.'
            if self.action == 'stop' or (self.action == 'skip' and self._is_fatal):
                message = f'{found}\n{self._advice()}'
                self._warn(message)  # so that the log of the run ends with it
                raise NonFiniteError(message)
            if count > 1:
                found += f' They went on: {count} iterations up to {self._last}.'
            self._warn(found)


def _matters(key: str) -> bool:
    return key == GRAD_NORM or (key.startswith('train/') and 'loss' in key)


def _describe(values: Sequence[tuple[str, float, int]]) -> str:
    """The bad values, then what helps to judge them."""
    bad = [
        f'{key.partition("/")[2]} {value}'
        for key, value, _ in values
        if key.startswith('train/') and key != 'train/grad_norm' and not math.isfinite(value)
    ]
    named: dict[str, float] = {}
    for key, value, _ in values:  # of several optimizers the bad one
        if math.isfinite(named.get(key, 0.0)):
            named[key] = value
    norm = named.get(GRAD_NORM, named.get('train/grad_norm'))
    text = [', '.join(bad)] if bad else ['losses finite']
    text.append('gradient norm not computed' if norm is None else f'gradient norm {norm:g}')
    if LOSS_SCALE in named:
        scale = named[LOSS_SCALE]
        lost = ', as every update overflows' if scale < LEAST_SCALE else ''
        text.append(f'loss scale after the update {scale:g}{lost}')
    return '; '.join(text)
