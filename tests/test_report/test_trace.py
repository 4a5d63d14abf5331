"""The trace of the last iterations."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.trace import trace_events, write_trace
from tests.testing.made_up import write_run

RING = dict(
    phases=['data', 'forward', 'step'], rows=[[7, 1.0, 0.5, 0.25, 0.0], [8, 1.75, 0.1, None, 0.2]]
)


def test_phases_are_consecutive_within_their_iteration() -> None:
    events = trace_events(RunLog(Path(), summary=dict(ring=RING)))
    slices = [(e['name'], e['ts'], e['dur']) for e in events if e['ph'] == 'X']
    assert slices == [
        ('iteration 7', 1e6, 750000), ('data', 1e6, 500000), ('forward', 1.5e6, 250000),
        ('iteration 8', 1.75e6, 300000), ('data', 1.75e6, 100000), ('step', 1.85e6, 200000),
    ]  # fmt: skip
    assert {e['name'] for e in events if e['ph'] == 'M'} == {'process_name', 'thread_name'}


def test_phases_have_a_fixed_order() -> None:
    hooks = ['hook:Timer', 'hook:SparseLoggerHook', 'hook:AsyncCheckpointHook']
    names = [
        'data', 'unexplained', hooks[0], 'evaluation', 'checkpoint copy', hooks[1], hooks[2],
        'train_step', 'step', 'backward', 'forward and backward', 'forward', 'to_device',
    ]  # fmt: skip
    ring = dict(phases=names, rows=[[1, 0.0, *(0.1,) * len(names)]])
    events = trace_events(RunLog(Path(), summary=dict(ring=ring)))
    _, *drawn = (event['name'] for event in events if event['ph'] == 'X')
    assert drawn == [
        'data', 'to_device', 'forward', 'forward and backward', 'backward', 'step', 'train_step',
        *hooks, 'checkpoint copy', 'evaluation', 'unexplained',
    ]  # fmt: skip


def test_slices_nest_despite_rounding() -> None:
    """The sum of rounded phases differs from the difference of rounded starts by a few us."""
    names = ['data', 'forward', 'hook:A', 'step', 'evaluation']
    chance, now, rows = random.Random(3), 1000.0, []
    for count in range(500):
        spent = [chance.uniform(0, 0.01) for _ in names]
        spent[-1] *= count % 2 / 1e4  # less than the rounding error
        rows.append([count, round(now, 6), *(round(value, 6) for value in spent)])
        now += sum(spent)
    over = [sum(row[1:]) - following[1] for row, following in itertools.pairwise(rows)]
    assert sum(1e-6 / 2 < one < 4e-6 for one in over) > 50
    events = trace_events(RunLog(Path(), summary=dict(ring=dict(phases=names, rows=rows))))
    slices = [event for event in events if event['ph'] == 'X']
    assert all(type(event[key]) is int for event in slices for key in ('ts', 'dur'))
    outer, free, end = 0, 0, 0  # end of the iteration, and of the last phase drawn in it
    for event in slices:
        end = event['ts'] + event['dur']
        if event['name'].startswith('iteration'):
            assert event['ts'] >= outer
            outer, free = end, event['ts']
        else:
            assert free <= event['ts'] < end <= outer
            free = end


def test_trace_explains_the_order_within_an_iteration(tmp_path: Path) -> None:
    path = write_trace(RunLog(tmp_path, summary=dict(ring=RING)), tmp_path / 'trace.json')
    content = json.loads(path.read_text())
    about = content['otherData']['about']
    assert 'The order of phases within an iteration is fixed' in about
    assert 'several times in an iteration is one slice with the sum' in about
    threads = [e['args']['name'] for e in content['traceEvents'] if e['name'] == 'thread_name']
    assert threads[0] == 'training loop (phases of an iteration: summed, in a fixed order)'


def test_stalls_are_instants_with_their_text() -> None:
    stalls = [
        dict(iter=8, cause='evaluation', text='It took long.', lost=0.2, evidence=dict(worker=1)),
        dict(iter=3, cause='long ago'),
    ]
    events = trace_events(RunLog(Path(), summary=dict(ring=RING, stalls=stalls)))
    (instant,) = (event for event in events if event['ph'] == 'i')
    assert (instant['name'], instant['ts'], instant['s']) == ('evaluation', 1.75e6, 't')
    assert instant['args'] == dict(text='It took long.', lost=0.2, evidence=dict(worker=1))
    (slow,) = (event for event in events if event['name'] == 'iteration 8')
    assert slow['args'] == dict(lost=0.2)


def test_stalls_of_an_earlier_run_are_omitted() -> None:
    log = RunLog(Path(), summary=dict(ring=RING), runs=[dict(run=0), dict(run=1)])
    log.stalls = [dict(iter=8, cause='long ago', run=0), dict(iter=7, cause='now', run=1)]
    instants = [event['name'] for event in trace_events(log) if event['ph'] == 'i']
    assert instants == ['now']


def test_file_contains_the_whole_ring(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path))
    content = json.loads(write_trace(log, tmp_path / 'trace.json').read_text())
    outer = [e for e in content['traceEvents'] if e['name'].startswith('iteration ')]
    assert len(outer) == 1024
    assert outer[-1]['name'] == 'iteration 2000'
    assert all({'pid', 'tid', 'ts', 'dur'} <= set(event) for event in outer)
    instants = [e for e in content['traceEvents'] if e['ph'] == 'i']
    assert len(instants) == len([line for line in log.stalls if line['iter'] > 976])


def test_missing_ring_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='no tempo_summary.json of the last run has a ring'):
        trace_events(RunLog(tmp_path))
    with pytest.raises(
        ValueError, match='expected the ring that ThroughputMonitorHook writes every minute'
    ):
        trace_events(RunLog(tmp_path))
    with pytest.raises(ValueError, match='stock logs contain no single iterations'):
        trace_events(RunLog(tmp_path, 'stock'))
    with pytest.raises(FileNotFoundError, match='folder .*nowhere does not exist'):
        write_trace(RunLog(tmp_path, summary=dict(ring=RING)), tmp_path / 'nowhere/trace.json')
