"""Windows of steps show the effects of a part on the process."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from typing import Any

import pytest
import torch

from mmtempo.benchmarks import side_effects_run
from mmtempo.benchmarks.side_effects_run import (
    PARTS,
    WARM_UP,
    Toy,
    measure,
    native_threads,
    voluntary_switches,
    window,
)
from tests.testing.processes import SPAWN, in_child

STEPS = 10
needs_linux = pytest.mark.skipif(sys.platform != 'linux', reason='needs RUSAGE_THREAD and /proc')


def test_warm_up_steps_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    # A step advances the clock by its number.
    monkeypatch.setattr('time.perf_counter', lambda: float(sum(steps)))
    found = window(lambda: steps.append(len(steps)), 3)
    assert found['seconds'] == [WARM_UP, WARM_UP + 1, WARM_UP + 2]


def test_work_runs_between_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def recorded(step: Any, steps: int) -> dict:
        events.append('window')
        return dict(number=len(events))

    class Part:
        def __enter__(self) -> Any:
            return int, lambda: events.append('work') or dict(lost=0.5)

        def __exit__(self, *error: Any) -> None:
            events.append('closed')

    monkeypatch.setattr(side_effects_run, 'window', recorded)
    monkeypatch.setattr(side_effects_run, 'REST', 0)
    monkeypatch.setitem(PARTS, 'fake', lambda args: Part())
    found = measure(argparse.Namespace(part='fake', steps=STEPS))
    assert found == dict(before=dict(number=1), after=dict(number=3), lost=0.5)
    assert events == ['window', 'work', 'window', 'closed']


@needs_linux
def test_threads_of_python_are_not_native() -> None:
    before, release = native_threads(), threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert native_threads() == before
    release.set()
    thread.join()


def test_counts_are_none_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, 'platform', 'win32')
    assert voluntary_switches() is None
    assert native_threads() is None
    assert window(int, 1)['switches'] is None


def switches_with_a_second_team() -> tuple[float, float]:
    torch.set_num_threads(os.cpu_count() or 1)
    toy, release, started = Toy(), threading.Event(), threading.Event()

    def run() -> None:
        torch.ones(10**6).add_(1)
        started.set()
        release.wait()

    before = window(toy, STEPS)['switches']
    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    after = window(toy, STEPS)['switches']
    release.set()
    thread.join()
    return before, after


@needs_linux
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason='one core has no thread team')
def test_context_switches_of_a_second_thread_team_count() -> None:
    before, after = in_child(switches_with_a_second_team, context=SPAWN)
    assert after > 3 * before + 20
