"""Finds the first iteration whose loss or gradient is no finite number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

GRAD_NORM = 'watch/grad_norm'
LOSS_SCALE = 'watch/loss_scale'
SKIPPED = 'watch/skipped'
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
        self._bad: list[tuple[int, str]] = []
        self._skipped: list[int] = []

    def look(self, iteration: int, values: Sequence[tuple[str, float, int]]) -> None:
        """Take in the values of an iteration, counted from 0."""
        total = 0.0
        for key, value, _ in values:
            total += value
            if key == SKIPPED and value:
                self._skipped.append(iteration + 1)
        # The sum of finite numbers may still overflow, so a look at each of them decides.
        if not math.isfinite(total) and any(
            not math.isfinite(value) and _matters(key) for key, value, _ in values
        ):
            self._bad.append((iteration + 1, _describe(values)))

    def check(self) -> None:
        """Act on what was found since the last call."""
        bad, self._bad = self._bad, []
        skipped, self._skipped = self._skipped, []
        if bad:
            iteration, what = bad[0]
            found = f'Non-finite values at iteration {iteration}: {what}.'
            if self.action == 'stop':
                message = f'{found}\n{self._advice()}'
                self._warn(message)  # so that the log of the run ends with it
                raise NonFiniteError(message)
            if len(bad) > 1:
                found += f' They went on: {len(bad)} iterations up to {bad[-1][0]}.'
            self._warn(found)
        if skipped:
            shown = ', '.join(map(str, skipped[:10]))
            more = f' and {len(skipped) - 10} more' if len(skipped) > 10 else ''
            self._warn(
                f'{len(skipped)} updates were skipped because of non-finite gradients, at '
                f'iterations {shown}{more}.'
            )


def _matters(key: str) -> bool:
    return key == GRAD_NORM or (key.startswith('train/') and 'loss' in key)


def _describe(values: Sequence[tuple[str, float, int]]) -> str:
    """The bad values, then what helps to judge them."""
    bad = [
        f'{key.partition("/")[2]} {value}'
        for key, value, _ in values
        if key.startswith('train/') and key != 'train/grad_norm' and not math.isfinite(value)
    ]
    named = {key: value for key, value, _ in values}
    norm = named.get(GRAD_NORM, named.get('train/grad_norm'))
    text = [', '.join(bad)] if bad else ['losses finite']
    text.append('gradient norm not computed' if norm is None else f'gradient norm {norm:g}')
    if LOSS_SCALE in named:
        text.append(f'loss scale after the update {named[LOSS_SCALE]:g}')
    return '; '.join(text)
