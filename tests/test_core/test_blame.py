"""The right cause is blamed, and the sentence says what is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmtempo.core import step_watch
from mmtempo.core.blame import STEP, Slow, blame

USUAL = dict(data=0.01, forward=0.06, backward=0.03)
CATEGORIES = {'hook:Slow': 'hook', 'hook:Logger': 'logging', 'hook:Saver': 'checkpoint'}


def slow(phase: str, seconds: float = 1.0, **known: Any) -> Slow:
    spent = dict(USUAL)
    spent[phase] = spent.get(phase, 0.0) + seconds
    return Slow(9, 0.1 + seconds, 0.1, spent, dict(USUAL), **known)


def origin(worker: int = 2) -> Any:
    return SimpleNamespace(worker=worker, seconds=1.9, slowest=55, slowest_seconds=1.8)


@pytest.mark.parametrize(
    ('case', 'category', 'cause', 'said'),
    [
        (slow('data'), 'data', 'waiting for data', 'took 1.10 s instead of 100 ms'),
        (
            slow(
                'data',
                note=dict(delivery=SimpleNamespace(samples=[1, 55], waited=1.0, origin=origin())),
            ),
            'data',
            'worker 2 was late',
            'worker 2 was late with samples 1, 55; sample 55 took 1.80 s',
        ),
        (
            slow('data', note=dict(worker=0, files=['a.jpg'])),
            'data',
            'worker 0 was late',
            'with samples a.jpg',
        ),
        (slow('evaluation', 30.0), 'evaluation', 'evaluation', 'evaluation (30.0 s)'),
        (slow('hook:Slow'), 'hook', 'Slow', ': Slow'),
        (slow('hook:Logger'), 'logging', 'Logger', ': Logger'),
        (slow('hook:Saver'), 'checkpoint', 'Saver', ': Saver'),
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
        (slow('backward', facts=dict(gc_seconds=0.2)), 'unexplained', 'backward', ': backward'),
        (
            slow('forward', facts=dict(major_faults=500.0)),
            'memory',
            'page faults',
            'page faults, in forward (500 of them read from a disk)',
        ),
        (
            slow('forward', facts=dict(minor_faults=9000.0, system_seconds=0.8)),
            'memory',
            'page faults',
            '(9000 pages, 800 ms in the kernel)',
        ),
        (slow('forward', facts=dict(minor_faults=9000.0)), 'unexplained', 'forward', ': forward'),
        (slow('forward', machine=dict(swap_in=9e6)), 'memory', 'swapping', '9 MB read back'),
        (
            slow('forward', machine=dict(throttled=0.7)),
            'host',
            'CPU limit of the container',
            '700 ms throttled',
        ),
        (
            slow('forward', facts=dict(recompiles=3.0), note=dict(is_first=True)),
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
        (slow('train_step'), 'unexplained', 'train_step', ': train_step'),
        (slow('forward and backward'), 'unexplained', 'forward and backward', 'instead of'),
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
    ],
)
def test_causes(case: Slow, category: str, cause: str, said: str) -> None:
    found = blame(case, CATEGORIES)
    assert (found.category, found.cause) == (category, cause)
    assert said in found.text


def test_evidence_is_what_was_more_than_usual() -> None:
    case = slow(
        'forward',
        facts=dict(major_faults=500.0, minor_faults=70.0, gc_seconds=0.5, user_seconds=0.0),
        usual_facts=dict(major_faults=100.0, minor_faults=70.0),
        machine=dict(psi_io=0.4),
        note=dict(shape=(4, 3)),
    )
    evidence = blame(case, {}).evidence
    assert evidence == dict(major_faults=400, gc_seconds=0.5, psi_io=0.4, shape=(4, 3))


def test_a_batch_of_many_samples_is_named_in_short() -> None:
    delivery = SimpleNamespace(samples=[*range(100)], waited=1.0, origin=None)
    found = blame(slow('data', note=dict(delivery=delivery)), {})
    assert 'samples 0, 1, 2, 3, 4, 5, 6, 7, ...' in found.text
    assert len(found.evidence['samples']) == 16


def test_each_part_of_a_step_is_known() -> None:
    """`StepWatch` names them; a part that is not known would be taken for a hook."""
    named = {key: value for key, value in vars(step_watch).items() if key.isupper()}
    names = {value for value in named.values() if isinstance(value, str)} - {step_watch.END}
    assert names - {step_watch.OUTSIDE} <= set(STEP)
    for name in names:
        assert blame(slow(name), {}).category == 'unexplained'
