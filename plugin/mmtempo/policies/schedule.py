"""Rescale schedules that count iterations, so that they keep their shape in samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .editor import Editor

WARM_UP = ('LinearLR', 'ConstantLR', 'LinearMomentum', 'ConstantMomentum')
POINTS = ('begin', 'end', 'total_steps')  # iterations from the start of the training
LENGTHS = ('step_size',)


@dataclass(frozen=True)
class Rescaling:
    """Conversion from iterations of the old training to those of the new one.

    Warm-up keeps its iterations: it lets the optimizer's averages settle, which takes updates
    and not samples. What follows it is scaled.

    Attributes:
        ratio: New iterations for an old one.
        warm_up: Iterations of the warm-up.
    """

    ratio: float
    warm_up: int = 0

    def point(self, iteration: int) -> int:
        """Return the iteration of the new training that corresponds to one of the old."""
        if iteration <= self.warm_up:
            return iteration
        return max(self.warm_up + 1, round(iteration * self.ratio))

    def length(self, iterations: int) -> int:
        """Return the new length of an interval."""
        return max(1, round(iterations * self.ratio))

    def end(self, iteration: int) -> int:
        """Return the new last iteration, rounded up so that no sample is left out."""
        whole = -int(-iteration * self.ratio // 1)
        return max(self.warm_up + 1, whole)


def schedulers_of(value: Any, key: str = 'param_scheduler') -> Iterator[tuple[str, Mapping]]:
    """Yield the key and the config of each scheduler.

    Args:
        value: One scheduler, a list of them, or a dict of these by optimizer.
        key: Key of `value` in the config. Defaults to 'param_scheduler'.
    """
    if isinstance(value, Mapping) and 'type' in value:
        yield key, value
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from schedulers_of(child, f'{key}.{name}')
    elif isinstance(value, (list, tuple)):
        for number, child in enumerate(value):
            yield from schedulers_of(child, f'{key}.{number}')


def warm_up_of(schedulers: Any, last: int) -> int:
    """Return the iterations until all warm-ups have ended; 0 where there is none.

    Args:
        schedulers: The config's `param_scheduler`.
        last: Last iteration of the training. A schedule that lasts as long is no warm-up.
    """
    ends = [
        scheduler.get('end', last)
        for _, scheduler in schedulers_of(schedulers)
        if _is_by_iteration(scheduler)
        and _name(scheduler) in WARM_UP
        and not scheduler.get('begin', 0)
    ]
    return max((end for end in ends if end < last), default=0)


def rescale_schedulers(editor: Editor, by: Rescaling, why: str) -> None:
    """Rescale the schedulers that count iterations; an epoch has the same samples as before."""
    for key, scheduler in list(schedulers_of(editor.get('param_scheduler'))):
        if not _is_by_iteration(scheduler):
            continue
        for name, value in _rescaled(scheduler, by).items():
            editor.set(f'{key}.{name}', value, why)


def _rescaled(scheduler: Mapping, by: Rescaling) -> dict[str, Any]:
    """Return the arguments of a scheduler that change."""
    changed: dict[str, Any] = {}
    begin = scheduler.get('begin', 0)
    for name in POINTS:
        if isinstance(scheduler.get(name), int):
            changed[name] = by.point(scheduler[name])
    if isinstance(scheduler.get('T_max'), int):
        changed['T_max'] = max(1, by.point(begin + scheduler['T_max']) - by.point(begin))
    for name in LENGTHS:
        if isinstance(scheduler.get(name), int):
            changed[name] = by.length(scheduler[name])
    if 'milestones' in scheduler:
        changed['milestones'] = [by.point(point) for point in scheduler['milestones']]
    if 'periods' in scheduler:
        changed['periods'] = [by.length(period) for period in scheduler['periods']]
    return changed


def _is_by_iteration(scheduler: Mapping) -> bool:
    return not scheduler.get('by_epoch', True)


def _name(scheduler: Mapping) -> str:
    """Return the class name of a scheduler, with `LR` in place of `ParamScheduler`."""
    kind = scheduler['type']
    name = kind if isinstance(kind, str) else kind.__name__
    return name.rpartition('.')[2].replace('ParamScheduler', 'LR')
