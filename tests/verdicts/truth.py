"""What a training of the graded set measures about itself, without the monitor."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

# Priorities of the outermost hooks. A user's hook after the one that saves (90) may read its files,
# so that each save would be waited for.
FIRST, LAST = 0, 89


class Truth:
    """Seconds by name, and the times of each iteration, of one training.

    Attributes:
        lost: Seconds lost to the cause, by name.
        steps: Seconds of each training step, from the last hook before it to the first after it.
        gaps: Wall seconds, seconds off the CPU, and whether an epoch ended, between the last hook
            of an iteration and the first of the next. They begin with the second iteration.
        wall: Seconds from the first hook of the first iteration to the last of the last.
    """

    def __init__(self) -> None:
        self.lost: defaultdict[str, float] = defaultdict(float)
        self.steps: list[float] = []
        self.gaps: list[tuple[float, float, bool]] = []
        self.wall = 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self)))

    @classmethod
    def read(cls, path: Path) -> Truth:
        truth = cls()
        vars(truth).update(json.loads(path.read_text()))
        return truth

    def of(self, name: str) -> float:
        """Return the seconds that the cause has counted under a name."""
        return self.lost.get(name, 0.0)

    def blocked(self) -> float:
        """Return the seconds off the CPU between iterations, in which only data is waited for."""
        return sum(off for _, off, _ in self.gaps)

    def between_epochs(self) -> float:
        """Return the seconds between epochs beyond those between other iterations."""
        ends = [wall for wall, _, is_end in self.gaps if is_end]
        others = [wall for wall, _, is_end in self.gaps if not is_end]
        return sum(ends) - len(ends) * float(np.median(others))

    def saving(self) -> float:
        """Return the seconds of long gaps beyond the usual one: those of saves."""
        walls = [wall for wall, _, _ in self.gaps]
        usual = float(np.median(walls))
        return sum(wall - usual for wall in walls if wall > 10 * usual)

    def computing(self) -> float:
        """Return the share of the time in training steps."""
        return sum(self.steps) / self.wall if self.wall else 0.0


truth = Truth()  # of the training in this process


@HOOKS.register_module()
class GradedFirst(Hook):
    """First hook of each hook point: ends gaps and steps."""

    priority = FIRST
    gap: tuple[float, float] | None = None  # wall and CPU time at which the gap began
    step = (0.0, 0.0)  # likewise, at which the step began
    began = 0.0

    def before_train_iter(self, runner: Any, batch_idx: int, **kwargs: Any) -> None:
        cls, now = GradedFirst, time.perf_counter()
        if cls.gap is None:
            cls.began = now
            return
        wall = now - cls.gap[0]
        off = wall - (time.thread_time() - cls.gap[1])
        # An index of 0 is a new epoch; loops without epochs count iterations.
        truth.gaps.append((wall, max(0.0, off), batch_idx == 0))

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        wall, cpu = GradedFirst.step
        seconds = time.perf_counter() - wall
        truth.steps.append(seconds)
        # What a step that only computes waited for a CPU.
        truth.lost['off CPU'] += max(0.0, seconds - (time.thread_time() - cpu))


@HOOKS.register_module()
class GradedLast(Hook):
    """Last hook before the one that saves: begins steps and gaps."""

    priority = LAST

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        GradedFirst.step = (time.perf_counter(), time.thread_time())

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        GradedFirst.gap = (now, time.thread_time())
        truth.wall = now - GradedFirst.began


@HOOKS.register_module()
class GradedBefore(Hook):
    """Hook called before the hooks in question; `GradedAfter` counts their time."""

    began: dict[str, float] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.began[self.name] = time.perf_counter()

    def before_val(self, runner: Any) -> None:
        self.began[f'{self.name} val'] = time.perf_counter()


@HOOKS.register_module()
class GradedAfter(Hook):
    """Hook called after the hooks in question; counts their time under a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        truth.lost[self.name] += time.perf_counter() - GradedBefore.began[self.name]

    def after_val(self, runner: Any) -> None:
        name = f'{self.name} val'
        truth.lost[name] += time.perf_counter() - GradedBefore.began[name]


def around(priority: int, name: str, until: int | None = None) -> list[dict]:
    """Return the configs of two hooks that count the time of the hooks of these priorities."""
    last = priority if until is None else until
    return [
        dict(type='GradedBefore', name=name, priority=priority - 1),
        dict(type='GradedAfter', name=name, priority=last + 1),
    ]
