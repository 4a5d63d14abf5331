"""The progress bar shows speed and remaining time, and gives the log its stream back."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from mmtempo.logging.progress_bar import ProgressBar, close_bars


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_speed_and_remaining_time(console: Console) -> None:
    now = [0.0]
    bar = ProgressBar(100, logging.Logger('bar'), console, clock=lambda: now[0])
    for done in range(1, 21):
        now[0] += 0.25
        bar.advance(done, lambda: 3661.0)
    bar.close()
    assert '4.00 it/s, 1:01:01 left' in shown(console)
    assert '19/100' in shown(console)


def test_a_pause_does_not_count_for_the_speed(console: Console) -> None:
    now = [0.0]
    bar = ProgressBar(100, logging.Logger('bar'), console, clock=lambda: now[0])
    for done in range(1, 41):
        if done == 20:
            bar.stage('evaluation')
            now[0] += 1000
        now[0] += 0.25
        bar.advance(done, lambda: None)
    bar.close()
    assert 'evaluation' in shown(console)
    assert '4.00 it/s' in shown(console).rpartition('evaluation')[2]


def test_log_lines_are_printed_above_the_bar(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, 'stdout', terminal)
    logger = logging.Logger('bar')
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    bar = ProgressBar(100, logger, console)
    logger.info('a line')
    assert terminal.getvalue() == ''
    assert 'a line' in shown(console)
    close_bars()
    assert handler.stream is terminal
    bar.close()  # no-op
