"""Diagnoses name the right cause, with its figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmtempo.monitor import step_timer
from mmtempo.timing.causes import STEP, SlowIteration, diagnose

USUAL = dict(data=0.01, forward=0.06, backward=0.03)
CATEGORIES = {'hook:Slow': 'hook', 'hook:Logger': 'logging', 'hook:Saver': 'checkpoint'}


def slow(phase: str, seconds: float = 1.0, **known: Any) -> SlowIteration:
    spent = dict(USUAL)
    spent[phase] = spent.get(phase, 0.0) + seconds
    return SlowIteration(9, 0.1 + seconds, 0.1, spent, dict(USUAL), **known)


def delivery(usual: float = 0.9, waited: float = 1.0, took: float = 1.8) -> dict[str, Any]:
    """Return the note of a batch of worker 2, of which sample 55 took longest."""
    origin = SimpleNamespace(worker=2, seconds=1.9, slowest=55, slowest_seconds=took)
    info = SimpleNamespace(samples=[1, 55], waited=waited, origin=origin, usual=usual)
    return dict(delivery=info)


@pytest.mark.parametrize(
    ('case', 'category', 'cause', 'text'),
    [
        (slow('data'), 'data', 'waiting for data', 'waiting for data'),
        (
            slow('data', note=delivery()),
            'data',
            'worker 2 was late',
            'worker 2 was late with samples 1, 55; sample 55 took 1.80 s',
        ),
        # A sample that takes far longer than others is the cause, not the worker that made it.
        (
            slow('data', note=delivery(usual=0.6)),
            'data',
            'slow sample',
            'slow sample 55 (1.80 s, usually 600 ms)',
        ),
        (slow('data', note=delivery(usual=0.61)), 'data', 'worker 2 was late', ''),
        # Its worker takes as long for the other sample of the batch.
        (slow('data', note=delivery(usual=0.2, took=0.96)), 'data', 'worker 2 was late', ''),
        (slow('data', note=delivery(usual=0.0)), 'data', 'worker 2 was late', ''),  # unknown
        (slow('data', note=delivery(0.1, waited=3.7)), 'data', 'worker 2 was late', ''),
        (
            slow('data', note=dict(worker=0, files=['a.jpg'])),
            'data',
            'worker 0 was late',
            'with samples a.jpg',
        ),
        (slow('evaluation', 30.0), 'evaluation', 'evaluation', 'evaluation (30.0 s)'),
        (slow('hook:Slow'), 'hook', 'Slow', 'Slow'),
        (slow('hook:Logger'), 'logging', 'Logger', 'Logger'),
        (slow('hook:Saver'), 'checkpoint', 'Saver', 'Saver'),
        (slow('checkpoint: fence'), 'checkpoint', 'checkpoint: fence', 'checkpoint: fence'),
        (
            slow('checkpoint: wait for the writer'),
            'checkpoint',
            'checkpoint: wait for the writer',
            'wait for the writer',
        ),
        (
            slow('backward', facts=dict(gc_seconds=0.9), usual_facts=dict(gc_seconds=0.01)),
            'gc',
            'garbage collection',
            'garbage collection (890 ms, within backward)',
        ),
        (slow('backward', facts=dict(gc_seconds=0.1)), 'unexplained', 'backward', 'backward'),
        (
            slow('forward', facts=dict(major_faults=500.0), machine=dict(psi_memory=0.5)),
            'memory',
            'waiting for memory',
            '(500 ms)',
        ),
        (slow('forward', machine=dict(psi_memory=0.49)), 'unexplained', 'forward', 'forward'),
        (
            slow('forward', facts=dict(major_faults=500.0)),
            'memory',
            'page faults',
            'page faults, in forward (500 of them read from a disk)',
        ),
        (
            slow('forward', facts=dict(minor_faults=9000.0, system_seconds=0.8)),
            'host',
            'page faults',
            '(9000 pages, 800 ms in the kernel)',
        ),
        (slow('forward', facts=dict(minor_faults=9000.0)), 'unexplained', 'forward', 'forward'),
        (slow('forward', machine=dict(swap_in=9e6)), 'memory', 'swapping', '8.58 MiB read back'),
        (
            slow('forward', machine=dict(throttled=0.7)),
            'host',
            'CPU limit of the container',
            '700 ms throttled',
        ),
        (
            slow('forward', facts=dict(recompiles=3.0), note=dict(is_first=True)),
            'warm-up',
            'first iterations',
            '(forward)',
        ),
        (
            slow('forward', facts=dict(recompiles=3.0)),
            'device',
            'torch compiled',
            'torch compiled 3 times (forward)',
        ),
        (slow('step', note=dict(is_first=True)), 'warm-up', 'first iterations', '(step)'),
        (
            slow('data', note=dict(is_first=True, worker=0)),
            'warm-up',
            'first iterations',
            'first iterations (data)',
        ),
        (
            slow('forward and backward', facts=dict(major_faults=500.0)),
            'memory',
            'page faults',
            'in forward and backward',
        ),
        (slow('train_step'), 'unexplained', 'train_step', 'train_step'),
        (
            slow('forward and backward'),
            'unexplained',
            'forward and backward',
            'forward and backward',
        ),
        (
            slow('forward', note=dict(is_new_shape=True, shape=(4, 3, 64, 64))),
            'device',
            'new input shape',
            'new input shape (4, 3, 64, 64)',
        ),
        (slow('forward', machine=dict(retries=2)), 'device', 'device memory was full', 'allocator'),
        (
            slow('forward', machine=dict(throttle=['too hot'])),
            'device',
            'device throttled: too hot',
            'too hot',
        ),
        (
            slow('forward', facts=dict(involuntary_switches=400.0)),
            'host',
            'other processes had the CPU',
            '400 involuntary',
        ),
        (slow('forward', machine=dict(psi_cpu=0.6)), 'host', 'waiting for a CPU', '(600 ms)'),
        (slow('forward', machine=dict(psi_cpu=0.4)), 'unexplained', 'forward', 'forward'),
        (
            slow(
                'forward',
                facts=dict(minor_faults=5000.0, system_seconds=0.9),
                machine=dict(psi_io=0.8),
            ),
            'host',
            'waiting for a disk',
            '(800 ms)',
        ),
        (
            slow(
                'forward',
                facts=dict(minor_faults=90_000.0, system_seconds=0.9),
                machine=dict(psi_io=0.8),
            ),
            'host',
            'page faults',
            '(90000 pages',
        ),
    ],
)
def test_cause_and_text(case: SlowIteration, category: str, cause: str, text: str) -> None:
    found = diagnose(case, CATEGORIES)
    (part,) = found.parts
    assert (part.category, part.cause) == (category, cause)
    assert part.seconds == pytest.approx(case.lost)
    assert text in found.why


@pytest.mark.parametrize(
    ('more', 'facts', 'causes'),
    [
        (
            {'evaluation': 0.8, 'hook:Saver': 0.7},
            {},
            {'evaluation': 0.8, 'Saver': 0.7},
        ),
        ({'hook:Slow': 0.3, 'forward': 0.2, 'data': 0.01}, {}, {'Slow': 0.306, 'forward': 0.204}),
        (
            {'hook:Slow': 0.9, 'forward': 0.1},
            {},
            {'Slow': 1.0},
        ),  # below the share of a separate cause
        (
            {'data': 0.6, 'backward': 0.4},
            dict(gc_seconds=0.39),
            {'waiting for data': 0.6, 'garbage collection': 0.4},
        ),
        (
            {'backward': 0.7, 'hook:Slow': 0.5},  # the collection was within one of the phases
            dict(gc_seconds=0.69),
            {'garbage collection': 0.7, 'Slow': 0.5},
        ),
        ({'forward': 0.5, 'backward': 0.4}, dict(gc_seconds=0.9), {'garbage collection': 0.9}),
        # Seconds belong to one cause, also where a collection is a small part of a phase.
        (
            {'evaluation': 10.0},
            dict(gc_seconds=2.0),
            {'evaluation': 8.0, 'garbage collection': 2.0},
        ),
    ],
)
def test_several_causes_share_the_lost_seconds(more: dict, facts: dict, causes: dict) -> None:
    spent = {one: USUAL.get(one, 0.0) + more.get(one, 0.0) for one in {**USUAL, **more}}
    case = SlowIteration(9, sum(spent.values()), sum(USUAL.values()), spent, dict(USUAL), facts)
    found = diagnose(case, CATEGORIES)
    assert {part.cause: part.seconds for part in found.parts} == pytest.approx(causes)
    assert [part.cause for part in found.parts] == list(causes)
    assert all(cause in found.why for cause in causes)
    assert sum(part.seconds for part in found.parts) == pytest.approx(case.lost)


def test_faster_phase_is_no_part() -> None:
    """The batch was ready early, because the previous step was slow."""
    usual_spent = dict(data=0.6, forward=0.1, backward=0.1)
    case = SlowIteration(9, 1.2, 0.8, dict(data=0.0, forward=0.6, backward=0.6), usual_spent)
    found = diagnose(case, {})
    assert {part.cause: part.seconds for part in found.parts} == pytest.approx(
        dict(forward=0.2, backward=0.2)
    )


@pytest.mark.parametrize(('forward', 'explained'), [(0.11, True), (0.09, False)])
def test_time_that_no_phase_lost_is_not_explained(forward: float, explained: bool) -> None:
    case = SlowIteration(9, 0.3, 0.1, dict(USUAL, forward=0.06 + forward, data=0.0), dict(USUAL))
    assert case.is_explained() == explained


def test_evidence_is_the_excess_over_usual() -> None:
    case = slow(
        'forward',
        facts=dict(major_faults=500.0, minor_faults=70.0, gc_seconds=0.5, user_seconds=0.0),
        usual_facts=dict(major_faults=100.0, minor_faults=70.0),
        machine=dict(psi_io=0.4),
        note=dict(shape=(4, 3)),
    )
    evidence = diagnose(case, {}).evidence
    assert evidence == dict(major_faults=400, gc_seconds=0.5, psi_io=0.4, shape=(4, 3))
    less_than_one = slow('forward', facts=dict(minor_faults=3.4), usual_facts=dict(minor_faults=3))
    assert diagnose(less_than_one, {}).evidence == {}


def test_large_batch_is_abbreviated() -> None:
    delivery = SimpleNamespace(samples=[*range(100)], waited=1.0, origin=None, usual=0.0)
    found = diagnose(slow('data', note=dict(delivery=delivery)), {})
    assert 'samples 0, 1, 2, 3, 4, 5, 6, 7, ...' in found.why
    assert len(found.evidence['samples']) == 16


def test_each_part_of_a_step_is_known() -> None:
    """`StepTimer` defines the parts; an unknown one would be treated as a hook."""
    named = {key: value for key, value in vars(step_timer).items() if key.isupper()}
    names = {value for value in named.values() if isinstance(value, str)} - {step_timer.END}
    assert names - {step_timer.OUTSIDE} <= set(STEP)
    for name in names:
        assert diagnose(slow(name), {}).parts[0].category == 'unexplained'


def test_stall_that_no_phase_explains_is_unexplained() -> None:
    """Iterations near it, at a slower level, took as long in each phase."""
    case = SlowIteration(9, 0.2, 0.1, dict(USUAL, data=0.0), dict(USUAL))
    diagnosis = diagnose(case, CATEGORIES)
    assert [(part.category, part.seconds) for part in diagnosis.parts] == [('unexplained', 0.0)]
