"""Why an iteration was slow: the phase that took longer than usual, and what else was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmtempo.utils import phases
from mmtempo.utils.units import duration

# Of what was lost, so much must be explained by a cause that cuts across phases.
MOST = 0.5
# Of what was lost, so much in another phase is a cause of its own.
PART = 0.15
# Seconds in the kernel, and pages read from a disk, that are worth to be mentioned.
NOTABLE = 0.3
MANY_FAULTS = 32
DEAR_FAULT = 2e-5  # seconds in the kernel; a page of 4 KB takes a tenth of that
MOST_SAMPLES = 16
NEW_SHAPE = 'new input shape'
# Phases of the step itself, where the host computes or waits for the device. Where the step is
# compiled it is one.
STEP = (
    phases.TO_DEVICE,
    phases.FORWARD,
    phases.BACKWARD,
    phases.BOTH,
    phases.STEP,
    phases.WHOLE,
)


@dataclass
class SlowIteration:
    """An iteration that took longer than those of its kind.

    Attributes:
        number: Which; counted from 1.
        seconds: It took.
        usual: Seconds that such iterations take.
        spent: Seconds by phase.
        usually: The same of usual iterations.
        facts: What was counted meanwhile; what is not known is not there.
        usual_facts: The same of usual iterations.
        machine: What the machine has to say of that time.
        note: How it came by its batch, 'delivery' or 'worker' and 'files'; its 'shape'; whether
            it 'is_first' or 'is_new_shape'.
    """

    number: int
    seconds: float
    usual: float
    spent: dict[str, float]
    usually: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    usual_facts: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> float:
        return self.seconds - self.usual

    def more(self, fact: str) -> float:
        """How much more of it than usual."""
        return self.facts.get(fact, 0.0) - self.usual_facts.get(fact, 0.0)

    def is_explained(self) -> bool:
        """Whether phases took more by much of what was lost: medians of several need not."""
        more = sum(max(0.0, self.spent[one] - self.usually.get(one, 0.0)) for one in self.spent)
        return more >= MOST * self.lost

    def parts(self) -> list[tuple[str, float]]:
        """Phases that took much of what was lost, and how much; most of all first."""
        more = {one: seconds - self.usually.get(one, 0.0) for one, seconds in self.spent.items()}
        first, *others = sorted(more, key=lambda one: -more[one])
        named = [first, *(one for one in others if more[one] > max(0.0, PART * self.lost))]
        # Others took little more, or less: together with them it is what was lost.
        whole = sum(more[one] for one in named)
        scale = self.lost / whole if whole > 0 else 0.0
        return [(one, more[one] * scale) for one in named]


@dataclass(frozen=True)
class CauseShare:
    """Of what an iteration lost, what one cause took.

    Attributes:
        category: What kind of cause it is.
        cause: It, in few words: what is the same for others of its like.
        seconds: Lost to it.
    """

    category: str
    cause: str
    seconds: float


@dataclass
class Diagnosis:
    """Why an iteration was slow.

    Attributes:
        phase: Where most of the time went.
        parts: Causes, the one that took most of it first.
        why: What people are told of them.
        evidence: Figures.
    """

    phase: str
    parts: list[CauseShare]
    why: str
    evidence: dict[str, Any]


def diagnose(slow: SlowIteration, categories: dict[str, str]) -> Diagnosis:
    """Find the cause, or of several in one iteration each.

    Args:
        slow: The iteration.
        categories: Of phases that are hooks.
    """
    evidence, collecting = _evidence(slow), slow.more('gc_seconds')
    causes: dict[tuple[str, str], list[float]] = {}
    said: list[str] = []
    phases = slow.parts()
    for phase, seconds in phases:
        # A collection within the first phase may be most of what others took as well.
        of = slow.lost if not said else seconds
        if collecting >= MOST * of:
            where = f' ({duration(collecting)}, within {phase.removeprefix("hook:")})'
            found = 'gc', 'garbage collection', where
            collecting -= seconds
        else:
            found = _cause(slow, phase, seconds, categories.get(phase, 'hook'), evidence)
        category, cause, more = found
        if (category, cause) not in causes:
            said.append(f'{cause}{more}' if not said else f'{cause} ({duration(seconds)})')
        causes.setdefault((category, cause), []).append(seconds)
    parts = [CauseShare(*names, sum(seconds)) for names, seconds in causes.items()]
    return Diagnosis(phases[0][0], parts, ', and '.join(said), evidence)


def _cause(
    slow: SlowIteration, phase: str, seconds: float, category: str, evidence: dict[str, Any]
) -> tuple[str, str, str]:
    """Category, cause and what follows on it in the sentence, of what a phase has lost."""
    warm_up = 'warm-up', 'first iterations', f' ({phase})'
    if phase == 'data':
        # Workers begin, and make their first batches meanwhile.
        return warm_up if slow.note.get('is_first') else ('data', *_of_data(slow, evidence))
    if phase == 'evaluation':
        return 'evaluation', 'evaluation', f' ({duration(slow.spent[phase])})'
    if phase.startswith('checkpoint'):
        return 'checkpoint', phase, ''
    system = _system(slow, seconds)
    if phase not in (*STEP, phases.OUTSIDE):
        name = phase.removeprefix('hook:')
        return category, name, f'; {system[1]}' if system is not None else ''
    if slow.more('recompiles') >= 1:
        return 'device', 'torch compiled', f' {slow.more("recompiles"):.0f} times ({phase})'
    if slow.note.get('is_first'):
        return warm_up
    if slow.note.get('is_new_shape'):
        return 'device', NEW_SHAPE, f' {slow.note.get("shape")} ({phase})'
    if system is not None:
        return system[0], system[1], f', in {phase}{system[2]}'
    return 'unexplained', phase, ''


def _of_data(slow: SlowIteration, evidence: dict[str, Any]) -> tuple[str, str]:
    worker = evidence.get('worker')
    cause = 'waiting for data' if worker is None else f'worker {worker} was late'
    samples = evidence.get('samples') or evidence.get('files') or []
    more = f' with samples {", ".join(map(str, samples[:8]))}' if samples else ''
    if len(samples) > 8:
        more += ', ...'
    if 'slowest_sample' in evidence:
        more += f'; sample {evidence["slowest_sample"]} took {duration(evidence["sample_seconds"])}'
    return cause, more


def _system(slow: SlowIteration, lost: float) -> tuple[str, str, str] | None:
    """What the operating system did while so much was lost: category, cause, and figures."""
    swapped = slow.machine.get('swap_in', 0)
    if swapped:
        return 'memory', 'swapping', f' ({swapped / 1e6:.0f} MB read back)'
    faults, in_kernel = slow.more('major_faults'), slow.more('system_seconds')
    if faults >= MANY_FAULTS:
        return 'memory', 'page faults', f' ({faults:.0f} of them read from a disk)'
    minor, disk = slow.more('minor_faults'), slow.machine.get('psi_io', 0)
    # What is read or written passes through fresh pages, too, but takes the kernel longer.
    if disk >= MOST * lost and in_kernel > DEAR_FAULT * minor:
        return 'host', 'waiting for a disk', f' ({duration(disk)})'
    if in_kernel >= NOTABLE * lost and minor >= MANY_FAULTS:
        return 'memory', 'page faults', f' ({minor:.0f} pages, {duration(in_kernel)} in the kernel)'
    throttled = slow.machine.get('throttled', 0)
    if throttled > 0 and throttled >= NOTABLE * lost:
        return 'host', 'CPU limit of the container', f' ({duration(throttled)} throttled)'
    if slow.machine.get('throttle'):
        return 'device', f'device throttled: {", ".join(slow.machine["throttle"])}', ''
    if slow.machine.get('retries'):
        return 'device', 'device memory was full', ' (the allocator had to free and try again)'
    switched = slow.more('involuntary_switches')
    if switched >= MANY_FAULTS:
        return 'host', 'other processes had the CPU', f' ({switched:.0f} involuntary switches)'
    if slow.machine.get('psi_cpu', 0) >= MOST * lost:
        return 'host', 'waiting for a CPU', f' ({duration(slow.machine["psi_cpu"])})'
    return None


def _evidence(slow: SlowIteration) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for fact, value in slow.facts.items():
        more = slow.more(fact)
        if value and (more > 0 if 'seconds' in fact else round(more) > 0):
            found[fact] = more if 'seconds' in fact else round(more)
    found.update(slow.machine)
    found.update(_of_delivery(slow.note.get('delivery')))
    for key in ('worker', 'files', 'shape'):
        if slow.note.get(key) is not None:
            found[key] = slow.note[key]
    return found


def _of_delivery(delivery: Any) -> dict[str, Any]:
    """What our loader says of a batch; see its `Delivery`."""
    if delivery is None:
        return {}
    found = dict(samples=list(delivery.samples)[:MOST_SAMPLES], waited=delivery.waited)
    if delivery.origin is not None:
        origin = delivery.origin
        found.update(
            worker=origin.worker,
            worker_seconds=origin.seconds,
            slowest_sample=origin.slowest,
            sample_seconds=origin.slowest_seconds,
        )
    return found
