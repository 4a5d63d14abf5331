"""Write the last iterations as a trace for https://ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mmtempo.utils.atomic_file import write_whole

from .format import number
from .run_log import RunLog

_PROCESS, _ITERATIONS, _STALLS = 1, 1, 2  # process and thread numbers in the trace
# Phases drawn before and after the hooks: the ring has the sum of each phase, not its start.
_FIRST = (
    'data', 'to_device', 'forward', 'forward and backward', 'backward', 'step', 'train_step',
)  # fmt: skip
_LAST = ('evaluation', 'unexplained')
ORDER = 'phases of an iteration: summed, in a fixed order'
ABOUT = (
    'The start of an iteration and the duration of its phases are measured. The order of phases '
    'within an iteration is fixed: data, the step, hooks as they were registered, checkpoints, '
    'evaluation, unexplained. A phase that occurs several times in an iteration is one slice with '
    'the sum.'
)
Event = dict[str, Any]


def write_trace(log: RunLog, path: str | os.PathLike[str]) -> Path:
    """Write the ring of recent iterations as a trace; return its path.

    Args:
        log: The run.
        path: The JSON file to write.
    """
    content = dict(traceEvents=trace_events(log), displayTimeUnit='ms', otherData=dict(about=ABOUT))
    return write_whole(path, json.dumps(content, allow_nan=False) + '\n')


def trace_events(log: RunLog) -> list[Event]:
    """Return slices of iterations and phases, and an instant for each stall among them.

    Args:
        log: The run.
    """
    ring = log.summary.get('ring') or {}
    names, rows = ring.get('phases') or [], ring.get('rows') or []
    if not rows:
        why = 'stock logs contain no single iterations'
        if log.kind == 'tempo':
            why = 'no tempo_summary.json of the last run has a ring of recent iterations'
        raise ValueError(
            f'{log.source}: cannot make a trace, {why}; expected the ring that '
            'ThroughputMonitorHook writes every minute and at the end of a run'
        )
    events = [
        _metadata('process_name', log.name),
        _metadata('thread_name', f'training loop ({ORDER})', _ITERATIONS),
        _metadata('thread_name', 'stalls', _STALLS),
    ]
    lines = [*(log.summary.get('stalls') or []), *log.of_last_run(log.stalls)]
    stalls = {line.get('iter'): line for line in lines}
    starts = [_microseconds(row[1]) for row in rows]
    phases = _in_order(names)
    for row, start, limit in zip(rows, starts, [*starts[1:], None]):
        events += _iteration(row, start, limit, phases, stalls.get(row[0]))
    return events


def _in_order(names: list[str]) -> list[tuple[int, str]]:
    """Return phases with their columns in the order in which they are drawn."""

    def rank(phase: tuple[int, str]) -> int:
        name = phase[1]
        if name in _FIRST:
            return _FIRST.index(name)
        if name in _LAST:
            return len(_FIRST) + 2 + _LAST.index(name)
        return len(_FIRST) + name.startswith('checkpoint')

    return sorted(enumerate(names), key=rank)  # stable: hooks keep the order of registration


def _iteration(
    row: list, start: int, limit: int | None, phases: list[tuple[int, str]], stall: Event | None
) -> list[Event]:
    """Return the slices of an iteration.

    Args:
        row: Its number, its start in seconds, and the seconds of each phase.
        start: Its start in microseconds.
        limit: The start of the next iteration, which no slice exceeds; None for the last one.
        phases: Columns and names of the phases in the order of drawing.
        stall: The line of its stall, if it has one.
    """
    times = [_microseconds(number(value) or 0.0) for value in row[2:]]
    end = start + sum(times)
    if limit is not None:
        end = max(start, min(end, limit))
    lost = {'lost': stall.get('lost')} if stall else None
    events = [_slice(f'iteration {row[0]}', start, end - start, lost)]
    if stall:
        events.append(_instant(stall, start))
    for column, name in phases:
        took = min(times[column], end - start) if column < len(times) else 0
        if took > 0:
            events.append(_slice(name, start, took))
            start += took
    return events


def _slice(name: str, start: int, took: int, arguments: Event | None = None) -> Event:
    """Return a complete event; times are in microseconds."""
    event = dict(name=name, ph='X', ts=start, dur=took, pid=_PROCESS, tid=_ITERATIONS)
    return dict(event, args=arguments) if arguments else event


def _instant(stall: Event, start: int) -> Event:
    return dict(
        name=str(stall.get('cause', 'stall')),
        ph='i',
        s='t',  # scope: drawn with the height of its thread
        ts=start,
        pid=_PROCESS,
        tid=_STALLS,
        args=dict(
            text=stall.get('text'), lost=stall.get('lost'), evidence=stall.get('evidence') or {}
        ),
    )


def _metadata(kind: str, text: str, thread: int | None = None) -> Event:
    event = dict(name=kind, ph='M', pid=_PROCESS, args=dict(name=text))
    return event if thread is None else dict(event, tid=thread)


def _microseconds(seconds: float) -> int:
    """Round to whole microseconds: the ring has no finer ones, and integer sums are exact."""
    return round(1e6 * seconds)
