"""The last iterations as a trace for https://ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mmtempo.utils.atomic_file import write_whole

from .format import number
from .run_log import RunLog

_PROCESS, _ITERATIONS, _STALLS = 1, 1, 2  # numbers of the trace's process and threads
# Before and behind the hooks: a ring has the sum of each phase, not when it was.
_FIRST = (
    'data', 'to_device', 'forward', 'forward and backward', 'backward', 'step', 'train_step',
)  # fmt: skip
_LAST = ('evaluation', 'unexplained')
ORDER = 'phases of an iteration: summed, in a fixed order'
ABOUT = (
    'Where an iteration begins and how long its phases took is measured. The order of phases '
    'within an iteration is a fixed one: data, the step, hooks as they were registered, '
    'checkpoints, evaluation, unexplained. What came several times in an iteration is one slice '
    'with the sum.'
)
Event = dict[str, Any]


def write_trace(log: RunLog, path: str | os.PathLike[str]) -> Path:
    """Write the ring of recent iterations; returns where it is."""
    content = dict(traceEvents=trace_events(log), displayTimeUnit='ms', otherData=dict(about=ABOUT))
    return write_whole(path, json.dumps(content, allow_nan=False) + '\n')


def trace_events(log: RunLog) -> list[Event]:
    """Slices of iterations and phases, and an instant for each stall among them."""
    ring = log.summary.get('ring') or {}
    names, rows = ring.get('phases') or [], ring.get('rows') or []
    if not rows:
        why = 'stock logs hold no single iterations'
        if log.kind == 'tempo':
            why = 'no tempo_summary.json of its last run has a ring of recent iterations'
        raise ValueError(
            f'{log.source}: no trace can be made, {why}; a trace needs what '
            'ThroughputMonitorHook writes once a minute, and at the end of a run'
        )
    events = [
        _name('process_name', log.name),
        _name('thread_name', f'training loop ({ORDER})', _ITERATIONS),
        _name('thread_name', 'stalls', _STALLS),
    ]
    found = [*(log.summary.get('stalls') or []), *log.of_last_run(log.stalls)]
    stalls = {line.get('iter'): line for line in found}
    starts = [_us(row[1]) for row in rows]
    phases = _in_order(names)
    for row, start, limit in zip(rows, starts, [*starts[1:], None]):
        events += _iteration(row, start, limit, phases, stalls.get(row[0]))
    return events


def _in_order(names: list[str]) -> list[tuple[int, str]]:
    """Phases with their columns as they are drawn: registered is not when they were."""

    def rank(phase: tuple[int, str]) -> int:
        name = phase[1]
        if name in _FIRST:
            return _FIRST.index(name)
        if name in _LAST:
            return len(_FIRST) + 2 + _LAST.index(name)
        return len(_FIRST) + name.startswith('checkpoint')

    return sorted(enumerate(names), key=rank)  # among equals, the order of registration


def _iteration(
    row: list, start: int, limit: int | None, phases: list[tuple[int, str]], stall: Event | None
) -> list[Event]:
    """Slices of an iteration; the next one begins at `limit`, and nothing reaches beyond it."""
    known = [_us(number(value) or 0.0) for value in row[2:]]
    end = start + sum(known)
    if limit is not None:
        end = max(start, min(end, limit))
    lost = {'lost': stall.get('lost')} if stall else None
    events = [_slice(f'iteration {row[0]}', start, end - start, lost)]
    if stall:
        events.append(_instant(stall, start))
    for column, name in phases:
        took = min(known[column], end - start) if column < len(known) else 0
        if took > 0:
            events.append(_slice(name, start, took))
            start += took
    return events


def _slice(name: str, start: int, took: int, arguments: Event | None = None) -> Event:
    """A complete event; times are in microseconds."""
    event = dict(name=name, ph='X', ts=start, dur=took, pid=_PROCESS, tid=_ITERATIONS)
    return dict(event, args=arguments) if arguments else event


def _instant(stall: Event, start: int) -> Event:
    return dict(
        name=str(stall.get('cause', 'stall')),
        ph='i',
        s='t',  # as high as its thread
        ts=start,
        pid=_PROCESS,
        tid=_STALLS,
        args=dict(
            text=stall.get('text'), lost=stall.get('lost'), evidence=stall.get('evidence') or {}
        ),
    )


def _name(kind: str, text: str, thread: int | None = None) -> Event:
    event = dict(name=kind, ph='M', pid=_PROCESS, args=dict(name=text))
    return event if thread is None else dict(event, tid=thread)


def _us(seconds: float) -> int:
    """Whole microseconds: the ring has no finer ones, and their sums are exact."""
    return round(1e6 * seconds)
