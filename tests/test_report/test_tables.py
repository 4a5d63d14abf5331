"""The tables: what was not measured has no column."""

from __future__ import annotations

import re
from pathlib import Path

from mmtempo.report import RunLog, read_log, tables

from .made_up import write_run


def text(markup: object) -> str:
    return re.sub(r'<[^>]*>', '|', str(markup))


def test_stalls(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path))
    rows = str(tables.stalls(log)).split('<tr>')
    assert len(rows) == 2 + 50
    assert 'evaluation' in rows[2]  # the costliest first
    worker = next(row for row in rows if 'worker 3' in row)
    assert 'slowest sample 171' in text(worker)
    assert re.search(r'samples \d+, \d+', text(worker))
    log.summary['stalls'] = [dict(iter=i, lost=i / 10) for i in range(300)]
    listing = text(tables.stalls(log))
    assert listing.index('|299|') < listing.index('|298|') < listing.index('|100|')
    assert '|99|' not in listing
    log.summary['stalls'] = [dict(iter=1, lost=1.0, evidence=dict(shape=[1, 2], x=None, y_z=0.5))]
    row = text(tables.stalls(log))
    assert 'shape 1 \N{MULTIPLICATION SIGN} 2' in row
    assert 'y z 0.500' in row
    assert '|x' not in row


def test_phases_without_percentiles_have_no_columns_for_them() -> None:
    log = RunLog(Path(), summary=dict(phases=dict(data=dict(seconds=2.0, share=0.25))))
    assert 'p50' not in text(tables.phases(log, {}))
    log.summary['phases']['data']['p50'] = 0.1
    assert 'p50' in text(tables.phases(log, {}))
    assert 'p95' not in text(tables.phases(log, {}))
    assert '25.0 %' in text(tables.phases(log, {}))


def test_memory_shows_last_and_extreme() -> None:
    sample = dict(ram_used=0.5, device=dict(allocated=1 << 30, throttle=[]))
    log = RunLog(Path(), summary=dict(memory=dict(now=sample, peak=dict(ram_used=0.75))))
    found = text(tables.memory(log))
    assert 'RAM of the machine in use||50.0 %||75.0 %' in found
    assert 'device: allocated||1.00 GiB||\N{EN DASH}' in found


def test_nothing_there() -> None:
    log = RunLog(Path())
    for table in (tables.stalls, tables.periods, tables.stages, tables.memory, tables.ranks):
        assert table(log) is None
    assert tables.phases(log, {}) is None
    assert tables.settings({}) is None
    assert tables.settings(dict(a_b=True, c=None, versions=dict(d=[1, 2]))) is not None
