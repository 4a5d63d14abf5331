"""For each finding of a verdict, runs in which it is true, and runs in which it is nearly true."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from tests.testing.summaries import CALM, summary
from tests.testing.verdicts import stalled

TOTAL = sum(CALM.values())
MORE, LESS = 0.031, 0.029  # shares of the time that are, and are not, worth a change

Run = dict[str, Any]  # arguments of `summary`


class Case(NamedTuple):
    """A finding.

    Attributes:
        key: Its key.
        run: A run in which it is true, and the largest finding.
        nearly: Runs in which it is not true, and the key of what is found instead.
        share: Share of the time that it costs. Defaults to `MORE`.
    """

    key: str
    run: Run
    nearly: list[tuple[Run, str]]
    share: float | None = MORE


def taking(share: float, phase: str, count: int | None = None) -> Run:
    """Return a run of which a phase takes a share of the time."""
    rest = TOTAL - CALM.get(phase, 0.0)
    seconds = rest * share / (1 - share)
    return dict(phases={phase: seconds if count is None else (seconds, count)})


def losing(share: float, cause: str, category: str, **more: Any) -> Run:
    """Return a run whose stalls of one cause take a share of the time."""
    return dict(stalled(cause, category, share * TOTAL), **more)


def late(share: float = 0.1, cores: int = 16, pressure: Any = None, **loader: Any) -> Run:
    """Return a run that waits for data; by default all 8 workers compute, and cores are free."""
    run = taking(share, 'data')
    figures: Run = dict(
        batches=5000, starved=4000, seconds=run['phases']['data'], starts=1, starting=0.0,
        samples=20000, made=6000.0,
    )  # fmt: skip
    loader = {**figures, **loader}
    loader.setdefault('cpu', loader['made'])
    return dict(run, machine=dict(cores=cores), loader=loader, pressure=pressure or {})


def of_one_worker(cause: str) -> Run:
    """Return a run with single late batches, and stalls with the period of a worker."""
    period = dict(every=8, what='num_workers', cause=cause, text=f'{cause}: every 8th iteration')
    lost = stalled('worker 2 was late', 'data', 0.05 * TOTAL)
    return late(made=4000.0) | lost | dict(periods=[period])


def slower(new: float, **more: Any) -> Run:
    """Return a run whose iterations take longer from the middle on."""
    return dict(pace=dict(values=[0.14] * 20 + [new] * 20, size=64), **more)


def drifting(last: float) -> Run:
    values = [0.14 + number * (last - 0.14) / 39 for number in range(40)]
    return dict(pace=dict(values=values, size=64))


def ranks(kind: str, **changes: Any) -> Run:
    """Return a run in which the others wait for one rank at each iteration."""
    mean = MORE * TOTAL / 5000 + (CALM['data'] / 5000 if kind == 'data' else 0.02)
    slowest = dict(max=0.1, rank=3, mean=mean, least=0.02, usual=3, often=25, of=50)
    return dict(ranks={kind: {**slowest, **changes}})


def once(run: Run, interval: int = 5000) -> Run:
    """Return the run with a single save."""
    phases = {'checkpoint: fence': (0.05, 1), WAIT: (0.1, 1), **run['phases']}
    return dict(run, phases=phases, setting=dict(checkpoint_interval=interval))


LATE_SAMPLES = stalled('slow sample', 'data', 0.056 * TOTAL)  # of 0.111 that it waits
THROTTLED = {'temperature': 0.51}
SPAN = dict(iterations=100, category='device', lost=0.51 * 20 * 64 * 0.02)
BUSY = dict(queued=MORE, others=0.11)
WAIT = 'checkpoint: wait for the writer'

KNOWN = dict(queued=0.0)  # the kernel counts waits for a CPU
CASES = [
    Case('healthy', {}, [(taking(MORE, 'evaluation'), 'evaluation')], None),
    Case('short', dict(late(0.19), iterations=199), [
        (dict(late(0.21), iterations=199), 'data: workers'),
        (dict(taking(0.5, 'evaluation'), iterations=200), 'evaluation'),
    ], None),
    Case('short', dict(taking(0.5, 'evaluation'), iterations=199), [
        (dict(taking(0.5, 'hook:EMAHook'), iterations=199), 'hook'),
        (dict(iterations=200), 'healthy'),
    ], None),
    # Data
    Case('data: workers', late(), [
        (late(LESS), 'healthy'), (late(made=4900.0), 'data: late'), (late(cores=8), 'data: cpu'),
        (late(seconds=79.0, starting=58.0), 'healthy'),
    ], 0.1),
    Case('data: workers', late(cores=8, cpu=3500.0, pressure=KNOWN), [
        (late(cores=8, cpu=3600.0, pressure=KNOWN), 'data: cpu'),
        (late(cores=8, cpu=3500.0), 'data: cpu'),  # it may have waited for a CPU
    ], 0.1),
    Case('data: workers', late(cores=8, pressure=dict(busy=0.84)), [
        (late(cores=8, pressure=dict(busy=0.86)), 'data: cpu'),
    ], 0.1),
    Case('data: workers', of_one_worker('worker 2 was late'), [
        (of_one_worker('EMAHook'), 'data: late'),
    ], 0.1),
    Case('data: cpu', late(cores=8), [(late(cores=9), 'data: workers')], 0.1),
    Case('data: cpu', late(cores=8, cpu=1000.0, pressure=dict(busy=0.86)), [
        (late(cores=8, cpu=1000.0, pressure=dict(busy=0.84)), 'data: workers'),
        # `cpu` includes the wait for a CPU, so the rest is none.
        (late(cores=8, cpu=1000.0, pressure=dict(busy=0.86, queued=0.0)), 'data: workers'),
    ], 0.1),
    Case('data: disk', late(cpu=800.0, pressure=dict(KNOWN, io=0.051)), [
        (late(cpu=800.0, pressure=dict(KNOWN, io=0.049)), 'data: workers'),
        (late(cpu=6000.0, pressure=dict(KNOWN, io=0.051)), 'data: workers'),
    ], 0.1),
    Case('data: samples', late(made=4000.0) | LATE_SAMPLES, [
        (late(made=4000.0) | stalled('slow sample', 'data', 0.055 * TOTAL), 'data: late'),
        (late(LESS) | stalled('slow sample', 'data', 0.028 * TOTAL), 'healthy'),
    ], 0.1),
    Case('data: late', late(MORE, made=4000.0), [
        (late(LESS, made=4000.0), 'healthy'), (late(MORE, made=4700.0), 'data: workers'),
    ]),
    # Periodic work
    Case('evaluation', taking(MORE, 'evaluation'), [
        (taking(LESS, 'evaluation'), 'healthy'), (taking(MORE, 'evaluation', count=1), 'healthy'),
    ]),
    Case('save', taking(0.0308, WAIT), [
        (taking(0.0285, WAIT), 'healthy'), (once(taking(MORE, WAIT, count=1)), 'healthy'),
    ]),
    Case('save', once(taking(0.0305, 'hook:CheckpointHook'), 2500), [
        (once(taking(0.0305, 'hook:CheckpointHook')), 'healthy'),
        (once(taking(LESS, 'hook:CheckpointHook'), 2500), 'healthy'),
    ]),
    Case('logging', taking(MORE, 'hook:SparseLoggerHook'), [
        (taking(LESS, 'hook:SparseLoggerHook'), 'healthy'),
    ]),
    Case('logging', taking(0.03, 'logging: visualizer'), [
        (taking(0.0285, 'logging: visualizer'), 'healthy'),
    ]),
    Case('hook', taking(MORE, 'hook:EMAHook'), [(taking(LESS, 'hook:EMAHook'), 'healthy')]),
    Case('hook', taking(MORE, 'hooks'), [(taking(LESS, 'hooks'), 'healthy')]),
    Case('epochs', taking(MORE, 'loader: end'), [(taking(LESS, 'loader: end'), 'healthy')]),
    Case('epochs', late(0.05, seconds=40.0, starting=4 / 3 * MORE * 740.0, starts=4), [
        (late(0.05, seconds=40.0, starting=4 / 3 * LESS * 740.0, starts=4), 'healthy'),
        (late(0.05, seconds=40.0, starting=4 / 3 * MORE * 740.0, starts=1), 'healthy'),
    ]),
    # The step
    *(
        Case(key, losing(MORE, cause, category), [(losing(LESS, cause, category), 'healthy')])
        for key, cause, category in (
            ('gc', 'garbage collection', 'gc'),
            ('recompilation', 'torch compiled', 'device'),
            ('shapes', 'new input shape', 'device'),
            ('device memory', 'device memory was full', 'device'),
            ('device throttled', 'device throttled: power limit', 'device'),
            ('disk', 'waiting for a disk', 'host'),
            ('page faults', 'page faults', 'host'),
            ('cpu quota', 'CPU limit of the container', 'host'),
            ('memory', 'page faults', 'memory'),
            ('memory', 'waiting for memory', 'memory'),
            ('swap', 'swapping', 'memory'),
        )
    ),
    *(
        Case(key, losing(MORE, cause, category), [
            (losing(LESS, cause, category), 'healthy'),
            (losing(MORE, cause, category, pressure=BUSY), 'busy machine'),
        ])
        for key, cause, category in (
            ('cpu', 'waiting for a CPU', 'host'),
            ('unexplained', 'forward', 'unexplained'),
        )
    ),
    Case('unexplained', taking(MORE, 'unexplained'), [(taking(LESS, 'unexplained'), 'healthy')]),
    Case('device throttled', dict(device_throttled=THROTTLED), [
        (dict(device_throttled={'temperature': 0.5}), 'healthy'),
        (dict(device_throttled={'power limit': 0.9}), 'healthy'),
        (dict(device_throttled=THROTTLED, device_busy=dict(mean=1.0, looks=9)), 'healthy'),
    ], 0.51),
    Case('device throttled', slower(0.17, device_throttled=THROTTLED), [
        (slower(0.17, device_throttled={'power limit': 0.01}), 'pace'),
    ], 0.03 * 1280 / TOTAL),
    Case('pace', slower(0.16), [
        (slower(0.153), 'healthy'), (slower(0.16, stalls=[SPAN]), 'healthy'),
        (slower(0.16, pressure=BUSY), 'busy machine'),
    ], 0.02 * 1280 / TOTAL),
    Case('pace', losing(MORE, 'slower forward', 'pace'), [
        (losing(LESS, 'slower forward', 'pace'), 'healthy'),
    ]),
    Case('drift', drifting(0.175), [(drifting(0.153), 'healthy')], 0.0175 * 2560 * 40 / 39 / TOTAL),
    Case('copies', taking(MORE, 'to_device'), [
        (taking(LESS, 'to_device'), 'healthy'),
        (dict(taking(MORE, 'to_device'), machine=dict(accelerator=None)), 'healthy'),
    ]),
    Case('idle device', dict(device_busy=dict(mean=0.83, looks=10)), [
        (dict(device_busy=dict(mean=0.84, looks=10)), 'healthy'),
        (dict(device_busy=dict(mean=0.83, looks=9)), 'healthy'),
    ], 0.17 - 12.3 / TOTAL),
    # The machine
    Case('busy machine', dict(pressure=BUSY), [
        (dict(pressure=dict(queued=LESS, others=0.11)), 'healthy'),
        (dict(pressure=dict(queued=MORE, others=0.1)), 'healthy'),
    ]),
    Case('cpu quota', dict(pressure=dict(throttled=16 * MORE)), [
        (dict(pressure=dict(throttled=16 * LESS)), 'healthy'),
    ]),
    Case('memory', dict(pressure=dict(memory=MORE)), [
        (dict(pressure=dict(memory=LESS)), 'healthy'),
    ]),
    Case('memory', dict(memory=dict(peak=dict(ram_used=0.91))), [
        (dict(memory=dict(peak=dict(ram_used=0.9))), 'healthy'),
    ], 0.0),
    Case('warnings', dict(warnings=['a']), [(dict(warnings=[]), 'healthy')], 0.0),
    # Ranks
    Case('rank: data', ranks('data'), [
        (ranks('data', often=24), 'healthy'), (ranks('data', usual=0), 'healthy'),
        (ranks('data', mean=LESS * TOTAL / 5000 + 0.0006), 'healthy'),
    ]),
    Case('rank: step', ranks('step', usual=0), [
        (ranks('step', often=24), 'healthy'), (ranks('step', usual=None), 'healthy'),
        (ranks('step', mean=LESS * TOTAL / 5000 + 0.02), 'healthy'),
    ]),
]  # fmt: skip


def made_up(case: Case) -> Run:
    """Return the summary in which a finding is true."""
    return summary(**copy.deepcopy(case.run))
