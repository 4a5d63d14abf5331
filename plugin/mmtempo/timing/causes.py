"""Diagnose slow iterations: which phase took longer than usual, and for which reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmtempo.utils import phases
from mmtempo.utils.units import duration, size

# Share of the lost time that a cause which cuts across phases must explain.
MOST = 0.5
# Share of the lost time from which on a further phase is a separate cause.
PART = 0.15
# Share of the lost time, in the kernel or throttled, from which on the kernel is named.
NOTABLE = 0.3
MANY_FAULTS = 32
DEAR_FAULT = 2e-5  # seconds in the kernel; a page of 4 KiB takes a tenth of that
MOST_SAMPLES = 16
SLOW_SAMPLE = 3.0  # multiple of the mean time of a sample
NEW_SHAPE = 'new input shape'
# Phases of the step itself, in which the host computes or waits for the device; a compiled step
# is a single phase.
STEP = (
    phases.TO_DEVICE,
    phases.FORWARD,
    phases.BACKWARD,
    phases.BOTH,
    phases.STEP,
    phases.WHOLE,
    phases.RELEASE,
)


@dataclass
class SlowIteration:
    """An iteration that took longer than usual for its kind.

    Attributes:
        number: Number of the iteration, from 1.
        seconds: Seconds the iteration took.
        usual: Seconds that iterations of this kind usually take.
        spent: Seconds by phase.
        usual_spent: Seconds by phase of usual iterations.
        facts: Counts during the iteration; unknown ones are absent.
        usual_facts: Counts during usual iterations.
        machine: Evidence of the machine for the time of the iteration.
        note: Origin of the batch ('delivery', or 'worker' and 'files'), its 'shape', and flags
            'is_first' and 'is_new_shape'.
    """

    number: int
    seconds: float
    usual: float
    spent: dict[str, float]
    usual_spent: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    usual_facts: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> float:
        """Return the seconds lost against a usual iteration."""
        return self.seconds - self.usual

    def excess(self, fact: str) -> float:
        """Return by how much a count exceeds its usual value."""
        return self.facts.get(fact, 0.0) - self.usual_facts.get(fact, 0.0)

    def is_explained(self) -> bool:
        """Return whether phases account for most of the lost time.

        They need not where values are medians over several iterations.
        """
        excess = sum(max(0.0, seconds) for seconds in self._excess_of_phases().values())
        return excess >= MOST * self.lost

    def parts(self) -> list[tuple[str, float]]:
        """Return the phases that lost much, and their seconds, the largest first."""
        excess = self._excess_of_phases()
        first, *others = sorted(excess, key=lambda phase: -excess[phase])
        named = [first, *(one for one in others if excess[one] > max(0.0, PART * self.lost))]
        # Scaled, because the phases left out took a little more, or less, than usual.
        whole = sum(excess[phase] for phase in named)
        scale = self.lost / whole if whole > 0 else 0.0
        return [(phase, excess[phase] * scale) for phase in named]

    def _excess_of_phases(self) -> dict[str, float]:
        return {
            phase: seconds - self.usual_spent.get(phase, 0.0)
            for phase, seconds in self.spent.items()
        }


@dataclass(frozen=True)
class CauseShare:
    """Share of one cause in the time that an iteration lost.

    Attributes:
        category: Category of the cause.
        cause: Short name of the cause, equal for all stalls with this cause.
        seconds: Seconds lost to the cause.
    """

    category: str
    cause: str
    seconds: float


@dataclass
class Diagnosis:
    """Causes of a slow iteration.

    Attributes:
        phase: Phase that lost most.
        parts: Causes, the one that lost most first.
        why: Sentence that names the causes.
        evidence: Figures that support it.
    """

    phase: str
    parts: list[CauseShare]
    why: str
    evidence: dict[str, Any]


def diagnose(slow: SlowIteration, categories: dict[str, str]) -> Diagnosis:
    """Find the causes of a slow iteration.

    Args:
        slow: The slow iteration, or the mean of several.
        categories: Category by phase, for phases that are hooks.
    """
    evidence, collecting = _evidence(slow), slow.excess('gc_seconds')
    causes: dict[tuple[str, str], float] = {}
    details: dict[tuple[str, str], str] = {}

    def add(seconds: float, category: str, cause: str, detail: str) -> None:
        details.setdefault((category, cause), detail)
        causes[category, cause] = causes.get((category, cause), 0.0) + seconds

    least, parts = PART * slow.lost, slow.parts()
    left = dict(parts)
    while left and collecting >= least > 0:
        # A collection was probably within the phase that lost about as much.
        phase = min(left, key=lambda one: abs(left[one] - collecting))
        where = f' ({duration(collecting)}, within {phase.removeprefix("hook:")})'
        taken = left[phase] if left[phase] - collecting < least else collecting
        add(taken, 'gc', 'garbage collection', where)
        collecting -= taken
        left[phase] -= taken
        if not left[phase]:
            del left[phase]
    for phase, seconds in left.items():
        add(seconds, *_cause(slow, phase, seconds, categories.get(phase, 'hook'), evidence))
    shares = [CauseShare(*names, seconds) for names, seconds in causes.items()]
    shares.sort(key=lambda share: -share.seconds)
    first, *others = shares
    sentence = [first.cause + details[first.category, first.cause]]
    sentence += [f'{share.cause} ({duration(share.seconds)})' for share in others]
    return Diagnosis(parts[0][0], shares, ', and '.join(sentence), evidence)


def _cause(
    slow: SlowIteration, phase: str, seconds: float, category: str, evidence: dict[str, Any]
) -> tuple[str, str, str]:
    """Return category, cause and detail for the seconds that a phase lost."""
    warm_up = 'warm-up', 'first iterations', f' ({phase})'
    if phase == 'data':
        # Workers start and make their first batches during the first iterations.
        return warm_up if slow.note.get('is_first') else ('data', *_data_cause(slow, evidence))
    if phase == 'evaluation':
        return 'evaluation', 'evaluation', f' ({duration(slow.spent[phase])})'
    if phase.startswith('checkpoint'):
        return 'checkpoint', phase, ''
    system = _system_cause(slow, seconds)
    if phase not in (*STEP, phases.OUTSIDE):
        name = phase.removeprefix('hook:')
        return category, name, f'; {system[1]}' if system is not None else ''
    if slow.note.get('is_first'):
        return warm_up
    if slow.excess('recompiles') >= 1:
        return 'device', 'torch compiled', f' {slow.excess("recompiles"):.0f} times ({phase})'
    if slow.note.get('is_new_shape'):
        return 'device', NEW_SHAPE, f' {slow.note.get("shape")} ({phase})'
    if system is not None:
        return system[0], system[1], f', in {phase}{system[2]}'
    return 'unexplained', phase, ''


def _data_cause(slow: SlowIteration, evidence: dict[str, Any]) -> tuple[str, str]:
    """Return cause and detail for a late batch."""
    worker, took = evidence.get('worker'), evidence.get('sample_seconds', 0.0)
    # The other samples of the batch tell a slow sample from a slow worker.
    count = len(slow.note['delivery'].samples) if 'delivery' in slow.note else 0
    others = (evidence.get('worker_seconds', 0.0) - took) / (count - 1) if count > 1 else 0.0
    mean = evidence.get('usual_sample_seconds')
    usual = max(mean, others) if mean else 0.0
    if usual and took >= SLOW_SAMPLE * usual and took >= MOST * evidence['waited']:
        which = f' {evidence["slowest_sample"]} ({duration(took)}, usually {duration(usual)})'
        return 'slow sample', which
    cause = 'waiting for data' if worker is None else f'worker {worker} was late'
    samples = evidence.get('samples') or evidence.get('files') or []
    detail = f' with samples {", ".join(map(str, samples[:8]))}' if samples else ''
    detail += ', ...' if len(samples) > 8 else ''
    if 'slowest_sample' in evidence:
        detail += f'; sample {evidence["slowest_sample"]} took {duration(took)}'
    return cause, detail


def _system_cause(slow: SlowIteration, lost: float) -> tuple[str, str, str] | None:
    """Return category, cause and detail if the operating system explains the lost seconds."""
    swapped = slow.machine.get('swap_in', 0)
    if swapped:
        return 'memory', 'swapping', f' ({size(swapped)} read back)'
    pressure = slow.machine.get('psi_memory', 0)
    if pressure > 0 and pressure >= MOST * lost:
        return 'memory', 'waiting for memory', f' ({duration(pressure)})'
    faults, in_kernel = slow.excess('major_faults'), slow.excess('system_seconds')
    if faults >= MANY_FAULTS:
        return 'memory', 'page faults', f' ({faults:.0f} of them read from a disk)'
    minor, disk = slow.excess('minor_faults'), slow.machine.get('psi_io', 0)
    # File reads and writes use new pages as well, but cost more kernel time for each.
    if disk >= MOST * lost and in_kernel > DEAR_FAULT * minor:
        return 'host', 'waiting for a disk', f' ({duration(disk)})'
    if in_kernel >= NOTABLE * lost and minor >= MANY_FAULTS:
        return 'host', 'page faults', f' ({minor:.0f} pages, {duration(in_kernel)} in the kernel)'
    throttled = slow.machine.get('throttled', 0)
    if throttled > 0 and throttled >= NOTABLE * lost:
        return 'host', 'CPU limit of the container', f' ({duration(throttled)} throttled)'
    if slow.machine.get('throttle'):
        return 'device', f'device throttled: {", ".join(slow.machine["throttle"])}', ''
    if slow.machine.get('retries'):
        return 'device', 'device memory was full', ' (the allocator freed its cache and retried)'
    switched = slow.excess('involuntary_switches')
    if switched >= MANY_FAULTS:
        return 'host', 'other processes had the CPU', f' ({switched:.0f} involuntary switches)'
    waited = slow.machine.get('psi_cpu', 0)
    if waited > 0 and waited >= MOST * lost:  # `lost` is 0 where no phase took longer than usual
        return 'host', 'waiting for a CPU', f' ({duration(waited)})'
    return None


def _evidence(slow: SlowIteration) -> dict[str, Any]:
    """Return the figures that exceed their usual values, and the origin of the batch."""
    evidence: dict[str, Any] = {}
    for fact, value in slow.facts.items():
        excess = slow.excess(fact)
        if value and (excess > 0 if 'seconds' in fact else round(excess) > 0):
            evidence[fact] = excess if 'seconds' in fact else round(excess)
    evidence.update(slow.machine)
    evidence.update(_delivery_evidence(slow.note.get('delivery')))
    for key in ('worker', 'files', 'shape'):
        if slow.note.get(key) is not None:
            evidence[key] = slow.note[key]
    return evidence


def _delivery_evidence(delivery: Any) -> dict[str, Any]:
    """Return what the `BatchInfo` of our loader tells about a batch."""
    if delivery is None:
        return {}
    evidence = dict(samples=list(delivery.samples)[:MOST_SAMPLES], waited=delivery.waited)
    if delivery.origin is not None:
        origin = delivery.origin
        evidence.update(
            worker=origin.worker,
            worker_seconds=origin.seconds,
            slowest_sample=origin.slowest,
            sample_seconds=origin.slowest_seconds,
            usual_sample_seconds=delivery.usual,
        )
    return evidence
