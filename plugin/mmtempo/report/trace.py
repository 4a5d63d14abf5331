"""The last iterations as a trace for https://ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .figures import number
from .files import write_whole
from .run_log import RunLog

_PROCESS, _ITERATIONS, _STALLS = 1, 1, 2  # numbers of the trace's process and threads
Event = dict[str, Any]


def write_trace(log: RunLog, path: str | os.PathLike[str]) -> Path:
    """Write the ring of recent iterations; returns where it is."""
    content = dict(traceEvents=trace_events(log), displayTimeUnit='ms')
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
            f'{log.source}: no trace can be made, {why}; a trace needs a run with '
            'ThroughputMonitorHook that got as far as its first log point'
        )
    events = [
        _name('process_name', log.name),
        _name('thread_name', 'training loop', _ITERATIONS),
        _name('thread_name', 'stalls', _STALLS),
    ]
    found = [*(log.summary.get('stalls') or []), *log.of_last_run(log.stalls)]
    stalls = {line.get('iter'): line for line in found}
    for iteration, start, *seconds in rows:
        known = [number(value) or 0.0 for value in seconds]
        stall = stalls.get(iteration)
        events.append(
            _slice(f'iteration {iteration}', start, sum(known), {'lost': stall.get('lost')})
            if stall
            else _slice(f'iteration {iteration}', start, sum(known))
        )
        if stall:
            events.append(_instant(stall, start))
        for name, took in zip(names, known):
            if took > 0:
                events.append(_slice(name, start, took))
            start += took
    return events


def _slice(name: str, start: float, seconds: float, arguments: Event | None = None) -> Event:
    """A complete event; times are in microseconds."""
    event = dict(name=name, ph='X', ts=_us(start), dur=_us(seconds), pid=_PROCESS, tid=_ITERATIONS)
    return dict(event, args=arguments) if arguments else event


def _instant(stall: Event, start: float) -> Event:
    return dict(
        name=str(stall.get('cause', 'stall')),
        ph='i',
        s='t',  # as high as its thread
        ts=_us(start),
        pid=_PROCESS,
        tid=_STALLS,
        args=dict(
            text=stall.get('text'), lost=stall.get('lost'), evidence=stall.get('evidence') or {}
        ),
    )


def _name(kind: str, text: str, thread: int | None = None) -> Event:
    event = dict(name=kind, ph='M', pid=_PROCESS, args=dict(name=text))
    return event if thread is None else dict(event, tid=thread)


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
