"""The top of the page: run, verdict, key figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mmtempo.report import RunLog
from mmtempo.report.html import overview


def text(markup: object) -> str:
    return re.sub(r'<[^>]*>', '|', str(markup))


def log(kind: str = 'tempo', **summary: Any) -> RunLog:
    return RunLog(Path('work_dirs/run'), kind, summary)


def test_header_shows_status_progress_and_error() -> None:
    found = text(
        overview.header(
            log(
                status='crashed', error='RuntimeError: <x>', seconds=90.0, first_iter=100,
                last_iter=250, max_iters=1000, setting=dict(config='configs/a_b.py'),
                machine=dict(cpu='a CPU', accelerator='a GPU'),
            )
        )
    )  # fmt: skip
    for words in (
        '|a_b |crashed|', '90.0 s of training', 'iteration 250 of 1000, resumed at 100', 'a GPU',
        'RuntimeError: &lt;x&gt;', '|work_dirs/run|',
    ):  # fmt: skip
        assert words in found
    assert 'a CPU' not in found
    assert 'about 90.0 s of training' in text(overview.header(log('stock', seconds=90.0)))


def test_running_status_may_be_that_of_a_killed_run() -> None:
    assert 'still running, or killed' in text(overview.header(log(status='running')))


@pytest.mark.parametrize(('count', 'is_offered'), [(0, False), (1, False), (2, True)])
def test_several_changes_are_offered_together(count: int, is_offered: bool) -> None:
    change = [dict(override=f'a.b{index}={index}', why='faster') for index in range(count)]
    found = str(overview.verdict(log(verdict=dict(headline='So.', change=change))))
    assert found.count('data-copy="--cfg-options a.b0=0') == min(count, 2)
    assert ('data-copy="--cfg-options a.b0=0 a.b1=1"' in found) == is_offered
    assert ('All changes together' in found) == is_offered


def test_tiles_show_only_what_was_measured() -> None:
    assert overview.tiles(log()) is None
    found = text(overview.tiles(log(it_per_s=8.0, samples_per_s=32.0, cv=0.031, p50=0.125)))
    assert 'end to end||8.00 it/s||32.0 samples/s' in found
    assert 'variation||3.1 %||even (target &lt; 10 %)' in found
    assert 'iteration, p50||125 ms|' in found
    assert 'steady' not in found
    assert 'as logged||8.00 it/s' in text(overview.tiles(log('stock', it_per_s=8.0)))


def test_notes_are_those_of_the_log() -> None:
    assert overview.notes(log()) is None
    for kind, title in (('stock', 'Limits of stock logs'), ('tempo', 'About these files')):
        run = log(kind)
        run.notes.append('a <note>')
        assert f'|{title}|' in text(overview.notes(run))
        assert '|a &lt;note&gt;|' in text(overview.notes(run))


def test_document_escapes_its_title_and_refuses_the_network() -> None:
    found = overview.document('a <b>', 'p {}', 'c <d>')
    assert '<title>a &lt;b&gt;</title>' in found
    assert '<style>p {}</style>' in found
    assert '<main>c &lt;d&gt;</main>' in found
    assert "default-src 'none'" in found
