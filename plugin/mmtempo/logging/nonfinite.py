"""Find the first iteration with a non-finite loss or gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

GRAD_NORM = 'watch/grad_norm'
LOSS_SCALE = 'watch/loss_scale'
SKIPPED = 'watch/skipped'
LEAST_SCALE = 1e-6  # after 36 overflows in a row from torch's initial scale
ACTIONS = ('stop', 'warn', 'skip')


class NonFiniteError(FloatingPointError):
    """A loss or gradient is NaN or infinite."""


class NonFiniteWatch:
    """Check logged values, after they were copied to the host.

    As in mmengine's `parse_losses`, a value whose name contains `loss` is a loss.

    Args:
        action: 'stop' raises `NonFiniteError`; 'warn' and 'skip' log a warning. Updates are
            skipped by the optimizer wrapper, not here.
        warn: Logs a warning.
        advice: Returns the remedy, for the end of the error.
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
        self._first: tuple[int, str] | None = None  # not reported yet: iteration, description
        self._last, self._count = 0, 0
        self._is_fatal = False  # weights are bad: skipping updates does not help
        self._skipped: list[int] = []

    def look(self, iteration: int, values: Sequence[tuple[str, float, int]]) -> None:
        """Check the values of an iteration, counted from 0."""
        total, is_lost = 0.0, False
        for key, value, _ in values:
            total += value
            if key == SKIPPED and value:
                self._skipped.append(iteration + 1)
            elif key == LOSS_SCALE and value < LEAST_SCALE:
                is_lost = True
        # The sum is a fast check; it may overflow for finite values, so each is checked then.
        if is_lost or (
            not math.isfinite(total)
            and any(not math.isfinite(value) and _matters(key) for key, value, _ in values)
        ):
            self.found(iteration, _describe(values))

    def found(self, iteration: int, what: str, in_weights: bool = False) -> None:
        """Record non-finite values of an iteration, counted from 0."""
        self._is_fatal |= in_weights
        # Weights may be checked later than the losses that they have made NaN.
        if self._first is None or iteration + 1 < self._first[0]:
            self._first = iteration + 1, what
        self._last = max(self._last, iteration + 1)
        self._count += 1

    @property
    def is_bad(self) -> bool:
        """Whether `check` has something to report."""
        return self._first is not None

    def check(self) -> None:
        """Report, or raise for, what was found since the last call."""
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
                self._warn(message)  # the log of the run must end with it
                raise NonFiniteError(message)
            if count > 1:
                found += f' {count} iterations up to {self._last} are affected.'
            self._warn(found)


def _matters(key: str) -> bool:
    return key == GRAD_NORM or (key.startswith('train/') and 'loss' in key)


def _describe(values: Sequence[tuple[str, float, int]]) -> str:
    """Describe the non-finite values and the values that help to explain them."""
    bad = [
        f'{key.partition("/")[2]} {value}'
        for key, value, _ in values
        if key.startswith('train/') and key != 'train/grad_norm' and not math.isfinite(value)
    ]
    named: dict[str, float] = {}
    for key, value, _ in values:  # of several optimizers: the one with a bad value
        if math.isfinite(named.get(key, 0.0)):
            named[key] = value
    norm = named.get(GRAD_NORM, named.get('train/grad_norm'))
    text = [', '.join(bad)] if bad else ['losses finite']
    text.append('gradient norm not computed' if norm is None else f'gradient norm {norm:g}')
    if LOSS_SCALE in named:
        scale = named[LOSS_SCALE]
        lost = ': every update overflows' if scale < LEAST_SCALE else ''
        text.append(f'loss scale after the update {scale:g}{lost}')
    return '; '.join(text)
