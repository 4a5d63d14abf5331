"""Figures of a run as a verdict needs them, and the findings that it consists of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mmtempo.timing.pace import Slowdown, slowdown
from mmtempo.utils.checks import is_whole
from mmtempo.utils.phases import LOADER_ENDS
from mmtempo.utils.units import counted, duration, percent

FEW = 20  # iterations; a run with fewer is not judged
SHORT = 200  # iterations; in fewer, periodic work and warm-up are no typical part
WORTH = 0.03  # share of the time that justifies a change
FULL = 0.90  # share of the memory
OTHERS = 0.10  # share of the CPU time that other processes must use to be named
MIN_READINGS = 10  # of the device; with fewer, its utilization counts as unknown


@dataclass(frozen=True)
class Advice:
    """An override for --cfg-options and its reason."""

    override: str
    why: str


@dataclass
class Finding:
    """A cost of the run.

    Attributes:
        key: Name of the kind of finding.
        seconds: The seconds that it costs in the whole run.
        headline: The finding in one sentence; empty where it costs nothing yet.
        why: Sentences with figures.
        change: Overrides that reduce the cost.
        is_risk: Whether it may end the run, and is reported for a short run as well.
        is_periodic: Whether it is work at an interval, which a short run does not show.
        comes_first: Whether it makes the other findings unreliable.
    """

    key: str
    seconds: float
    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Advice] = field(default_factory=list)
    is_risk: bool = False
    is_periodic: bool = False
    comes_first: bool = False


class RunFigures:
    """Access to the figures of a `tempo_summary.json` that may be incomplete.

    Args:
        summary: The content of the file.
    """

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.phases: Mapping[str, Any] = summary.get('phases') or {}
        self.setting: Mapping[str, Any] = summary.get('setting') or {}
        self.machine: Mapping[str, Any] = summary.get('machine') or {}
        self.causes: Mapping[str, Any] = (summary.get('lost') or {}).get('by_cause') or {}
        self.stalls: list[Mapping[str, Any]] = summary.get('stalls') or []
        # Absent figures count as 0 here.
        self.pressure: Mapping[str, float] = _numbers(summary.get('pressure'))
        self.loader: Mapping[str, float] = _numbers(summary.get('loader'))
        self.periods: list[Mapping[str, Any]] = summary.get('periods') or []
        self.peak: Mapping[str, Any] = (summary.get('memory') or {}).get('peak') or {}
        self.iterations = int(summary.get('iterations') or 0)
        self.total = sum(self.seconds(name) for name in self.phases)

    def seconds(self, phase: str) -> float:
        """Return the seconds spent in a phase, 0 if it does not occur."""
        return (self.phases.get(phase) or {}).get('seconds') or 0.0

    def median(self, phase: str) -> float:
        """Return the median of the seconds that an iteration spends in a phase."""
        return (self.phases.get(phase) or {}).get('p50') or 0.0

    def count(self, phase: str) -> int:
        """Return in how many iterations a phase occurs."""
        return int((self.phases.get(phase) or {}).get('count') or 0)

    def share(self, seconds: float) -> float:
        """Return seconds as a share of the total time."""
        return seconds / self.total if self.total else 0.0

    def is_worth(self, seconds: float) -> bool:
        """Return whether seconds are more than `WORTH` of the time."""
        return self.share(seconds) > WORTH

    def cost(self, seconds: float) -> str:
        """Format seconds with their share of the total time."""
        return f'{duration(seconds)}, {percent(self.share(seconds))} of the time'

    def per_iteration(self, seconds: float) -> str:
        """Format total seconds as a mean per iteration."""
        return f'{duration(seconds / self.iterations)} per iteration'

    def lost(self, *categories: str) -> list[tuple[str, float, int]]:
        """Return cause, seconds and number of the stalls of these categories, largest first."""
        causes = [
            (cause, entry.get('seconds') or 0.0, int(entry.get('count') or 0))
            for cause, entry in self.causes.items()
            if entry and entry.get('category') in categories
        ]
        return sorted(causes, key=lambda row: -row[1])

    def lost_to(self, cause: str, category: str | None = None) -> float:
        """Return the seconds lost to a cause of stalls."""
        entry = self.causes.get(cause) or {}
        is_other = category is not None and entry.get('category') != category
        return 0.0 if is_other else entry.get('seconds') or 0.0

    def lost_at_end(self, category: str) -> float:
        """Return the seconds lost to a category in the last iteration, and after it."""
        return sum(
            part.get('seconds') or 0.0
            for stall in self.stalls
            if stall.get('iter', 0) == self.summary.get('last_iter')
            for part in stall.get('parts') or ()
            if part.get('category') == category
        )

    def saving(self, seconds: float) -> str:
        """Format what a run saves without a cost: per hour, and in the rest of the training."""
        text = f'up to {duration(3600 * self.share(seconds))} per hour'
        left = (self.summary.get('max_iters') or 0) - (self.summary.get('last_iter') or 0)
        if left > 0:
            rest = left * seconds / self.iterations
            text += f', {duration(rest)} in the {counted(left, "iteration")} that remain'
        return text

    def whole(self, key: str) -> int | None:
        """Return a setting if it is an integer of at least 0, else None."""
        value = self.setting.get(key)
        return value if is_whole(value, least=0) else None

    def has_part(self, name: str) -> bool:
        """Return whether the run has a loop, hook or optimizer wrapper of this class."""
        parts = self.setting.get('parts') or ()
        return name == self.setting.get('loop') or name in parts or f'hook:{name}' in self.phases

    def key_of_hook(self, name: str) -> str | None:
        """Return the key of `default_hooks` with a hook of this class, None if there is none."""
        hooks = self.setting.get('default_hooks') or {}
        return next((key for key, kind in hooks.items() if kind == name), None)

    @property
    def cores(self) -> int | None:
        """Cores of this node for each training process and its workers; None if unknown."""
        cores, processes = self.machine.get('cores'), self.whole('local_world')
        return max(1, cores // max(1, processes or self.whole('world') or 1)) if cores else None

    @property
    def is_short_of_memory(self) -> bool:
        """Whether memory was nearly full, or processes waited for it."""
        is_full = (self.peak.get('ram_used') or 0.0) > FULL
        stalls = sum(seconds for _, seconds, _ in self.lost('memory'))
        return is_full or self.pressure['memory'] > WORTH or self.is_worth(stalls)

    @property
    def is_taken(self) -> bool:
        """Whether other processes used the CPUs while the main thread waited for one."""
        # With several processes here, `others` are mostly those of this training; with a quota,
        # the kernel counts its pauses as waits for a CPU.
        is_alone = (self.whole('local_world') or 1) == 1 and self.pressure['throttled'] <= WORTH
        return is_alone and self.pressure['queued'] > WORTH and self.pressure['others'] > OTHERS

    @property
    def waited(self) -> float:
        """Seconds spent waiting for a batch that was not there, once the workers had started."""
        if 'seconds' in self.loader:
            return self.loader['seconds'] - self.loader['starting']
        warm_up = sum(
            stall.get('lost') or 0.0
            for stall in self.stalls
            if stall.get('category') == 'warm-up' and stall.get('phase') == 'data'
        )
        return max(0.0, self.seconds('data') - warm_up)

    @property
    def computed(self) -> float:
        """Seconds in which batches were consumed: no waiting, evaluation or saving."""
        return sum(
            self.seconds(name) for name in self.phases if name != 'data' and not is_pause(name)
        )

    @cached_property
    def slowdown(self) -> Slowdown | None:
        """The lasting change to slower iterations; None without one."""
        pace = self.summary.get('pace') or {}
        return slowdown(pace.get('values') or [], pace.get('size') or 1, self.iterations)

    @property
    def device_busy(self) -> float | None:
        """Share of the time in which the device was busy; None if unknown.

        From the device's driver. Device events cannot tell: the device may also be idle between
        two of them.
        """
        found = self.summary.get('device_busy') or {}
        return found.get('mean') if self.device_readings >= MIN_READINGS else None

    @property
    def device_readings(self) -> int:
        """Number of readings of the device's utilization."""
        return (self.summary.get('device_busy') or {}).get('looks') or 0


def _numbers(figures: Any) -> Counter[str]:
    known = {key: value for key, value in (figures or {}).items() if value is not None}
    return Counter(known)


def is_pause(phase: str) -> bool:
    """Return whether the training consumes no batches during this phase."""
    return is_save(phase) or phase in ('evaluation', LOADER_ENDS)


def is_save(phase: str) -> bool:
    """Return whether a phase is a part of saves."""
    is_part = phase.startswith('checkpoint') or phase == 'hook:SnapshotFence'
    return is_part or 'CheckpointHook' in phase
