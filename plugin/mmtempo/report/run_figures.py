"""What a verdict is made of: the figures of a run, and what they are found to mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmtempo.utils.phases import LOADER_ENDS
from mmtempo.utils.units import duration, percent

WORTH = 0.03  # share of the time that is worth a change
FULL = 0.90  # of the memory
LOOKS = 10  # at a device, of fewer nothing is said


@dataclass(frozen=True)
class Advice:
    """An override, as --cfg-options takes it, and what it is for."""

    override: str
    why: str


@dataclass
class Finding:
    """One thing that costs a share of the time.

    Attributes:
        share: Of the time.
        headline: It, in one sentence.
        why: Sentences with figures.
        change: What mends it.
        is_risk: Whether it is worth a word whatever it costs.
    """

    share: float
    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Advice] = field(default_factory=list)
    is_risk: bool = False


class RunFigures:
    """A `tempo_summary.json`, in which what was not measured may be missing.

    Args:
        summary: Its content.
    """

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.phases: Mapping[str, Any] = summary.get('phases') or {}
        self.setting: Mapping[str, Any] = summary.get('setting') or {}
        self.machine: Mapping[str, Any] = summary.get('machine') or {}
        self.causes: Mapping[str, Any] = (summary.get('lost') or {}).get('by_cause') or {}
        self.stalls: list[Mapping[str, Any]] = summary.get('stalls') or []
        self.periods: list[Mapping[str, Any]] = summary.get('periods') or []
        self.peak: Mapping[str, Any] = (summary.get('memory') or {}).get('peak') or {}
        self.iterations = int(summary.get('iterations') or 0)
        self.total = sum(self.seconds(name) for name in self.phases)

    def seconds(self, phase: str) -> float:
        return (self.phases.get(phase) or {}).get('seconds') or 0.0

    def middle(self, phase: str) -> float:
        """Seconds in half of the iterations at most."""
        return (self.phases.get(phase) or {}).get('p50') or 0.0

    def share(self, seconds: float) -> float:
        return seconds / self.total

    def cost(self, seconds: float) -> str:
        return f'{duration(seconds)}, {percent(self.share(seconds))} of the time'

    def each(self, seconds: float) -> str:
        return f'{duration(seconds / self.iterations)} an iteration'

    def lost(self, *categories: str) -> list[tuple[str, float, int]]:
        """Causes of stalls with seconds and how often, the largest first."""
        found = [
            (cause, one.get('seconds') or 0.0, int(one.get('count') or 0))
            for cause, one in self.causes.items()
            if one.get('category') in categories
        ]
        return sorted(found, key=lambda row: -row[1])

    def whole(self, key: str) -> int | None:
        """A whole number of the setting, where it is known."""
        value = self.setting.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def has_part(self, name: str) -> bool:
        """Whether a loop, hook or wrapper of that class takes part."""
        parts = self.setting.get('parts') or ()
        return name == self.setting.get('loop') or name in parts or f'hook:{name}' in self.phases

    def key_of_hook(self, name: str) -> str | None:
        """Of `default_hooks`, the key under which the config has a hook of that class."""
        named = self.setting.get('default_hooks') or {}
        return next((key for key, kind in named.items() if kind == name), None)

    @property
    def cores(self) -> int | None:
        """For one process of the training and its workers, of those on this node."""
        cores, processes = self.machine.get('cores'), self.whole('local_world')
        return max(1, cores // max(1, processes or self.whole('world') or 1)) if cores else None

    @property
    def is_short_of_memory(self) -> bool:
        return (self.peak.get('ram_used') or 0.0) > FULL or bool(self.lost('memory'))

    @property
    def waited(self) -> float:
        """Seconds waited for data, but for what the very first batches took."""
        warm_up = sum(
            stall.get('lost') or 0.0
            for stall in self.stalls
            if stall.get('category') == 'warm-up' and stall.get('phase') == 'data'
        )
        return max(0.0, self.seconds('data') - warm_up)

    @property
    def computed(self) -> float:
        """Seconds in which batches were used up: without waiting, evaluation and checkpoints."""
        return sum(
            self.seconds(name) for name in self.phases if name != 'data' and not is_pause(name)
        )

    @property
    def device_busy(self) -> float | None:
        """Of the time, the part in which the device had something to do; None if not known.

        As its driver says. The device's own clock does not tell: between two of its events it
        may have been idle as well.
        """
        found = self.summary.get('device_busy') or {}
        return found.get('mean') if (found.get('looks') or 0) >= LOOKS else None

    @property
    def device_looks(self) -> int:
        """How often somebody has looked whether it is busy."""
        return (self.summary.get('device_busy') or {}).get('looks') or 0


def is_pause(phase: str) -> bool:
    """Whether nobody asks for a batch meanwhile."""
    is_save = phase.startswith('checkpoint') or 'CheckpointHook' in phase
    return is_save or phase in ('evaluation', 'hook:SnapshotFence', LOADER_ENDS)
