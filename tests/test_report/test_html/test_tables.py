"""The tables: values that were not measured have no column."""

from __future__ import annotations

import re
from pathlib import Path

from mmtempo.report import RunLog, read_log
from mmtempo.report.html import tables
from tests.testing.made_up import write_lines, write_run, write_summary


def text(markup: object) -> str:
    return re.sub(r'<[^>]*>', '|', str(markup))


def test_stalls_are_listed_by_cost_with_evidence(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path))
    rows = str(tables.stalls(log)).split('<tr>')
    assert len(rows) == 2 + 50
    assert 'evaluation' in rows[2]  # the costliest is first
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
    assert '25 %' in text(tables.phases(log, {}))


def test_memory_shows_last_and_extreme_values() -> None:
    sample = dict(ram_used=0.5, device=dict(allocated=1 << 30, throttle=[]))
    log = RunLog(Path(), summary=dict(memory=dict(now=sample, peak=dict(ram_used=0.75))))
    found = text(tables.memory(log))
    assert 'RAM of the machine in use||50 %||75 %' in found
    assert 'device: allocated||1.00 GiB||\N{EN DASH}' in found


def test_stages_have_title_and_notes() -> None:
    found = [dict(name='net.0', share=0.4, seconds=0.1), dict(name='net', share=0.9, seconds=0.2)]
    stages = dict(iterations=7, asked=10, stages=found, never_called=['a<b'], by_children=['net'])
    shown = text(tables.stages(RunLog(Path(), summary=dict(stages=stages))))
    for words in (
        'Forward pass by stage, 7 of 10 iterations (the run ended)',
        'Never called in the forward pass: a&lt;b. ',
        'to the last: net. ',
        'The time of a nested stage is also part of its parent.',
    ):
        assert words in shown


def test_empty_run_has_no_tables() -> None:
    log = RunLog(Path())
    for table in (tables.stalls, tables.periods, tables.stages, tables.memory, tables.ranks):
        assert table(log) is None
    assert tables.phases(log, {}) is None
    assert tables.settings({}) is None
    assert tables.settings(dict(a_b=True, c=None, versions=dict(d=[1, 2]))) is not None


def test_memory_of_a_container_is_named() -> None:
    sample = dict(ram_used=0.5, ram_total=1 << 30, ram_of='the container', tree_rss=1 << 30)
    log = RunLog(Path(), summary=dict(memory=dict(now=sample, peak=dict(ram_used=0.75))))
    found = text(tables.memory(log))
    assert 'RAM of the container in use||50 %||75 %' in found
    assert 'RAM of the container||1.00 GiB' in found
    assert 'the machine' not in found
    assert 'all processes of the training (RSS: shared memory counts for each)||1.00' in found


def test_utilization_of_the_device_is_a_mean() -> None:
    log = RunLog(Path(), summary=dict(device_busy=dict(mean=0.87, looks=40)))
    found = text(tables.memory(log))
    assert 'device: busy, mean of 40 readings||87 %|' in found


def test_slowest_rank_is_listed() -> None:
    data = dict(max=0.21, rank=3, mean=0.02, usual=1, often=30, of=40)
    log = RunLog(Path(), summary=dict(ranks=dict(data=data, step=dict(max=0.5, rank=0))))
    found = text(tables.ranks(log))
    assert '|data||210 ms||3||20.0 ms||1||30 of 40|' in found
    assert '|step||500 ms||0|' in found


def test_resumed_run_has_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    lines = [
        dict(kind='run', iter=0), dict(kind='stall', iter=7, lost=1.0, cause='long ago'),
        dict(kind='warning', text='long ago'),
        dict(kind='stages', stages=[dict(name='long ago')]), dict(kind='run', iter=10),
    ]  # fmt: skip
    write_lines(tmp_path, lines)
    for summary in (dict(stalls=[], warnings=[]), {}):
        write_summary(tmp_path, dict(status='completed', iterations=5, **summary))
        log = read_log(tmp_path)
        assert len(log.stalls) == 1
        for table in (tables.stalls, tables.warnings, tables.stages):
            assert table(log) is None


def test_sentences_have_a_minimum_width() -> None:
    """The class `sentence` has a minimum width in page.css."""
    period = dict(every=8, cause='a', count=1, of=1, text='Every <8th> is late.')
    stall = dict(iter=3, cause='a', text='It took long.', evidence=dict(worker=1))
    log = RunLog(Path(), summary=dict(periods=[period], stalls=[stall]))
    sentence = '<div class="sentence">Every &lt;8th&gt; is late.</div>'
    assert sentence in str(tables.periods(log))
    assert '<div class="sentence">It took long.<div class="chips">' in str(tables.stalls(log))
    del period['text']
    assert 'description' not in str(tables.periods(log))


def test_changes_of_the_usual_time_have_their_cause() -> None:
    slower = dict(iter=301, old=0.1, new=0.3, cause='SlowHook')
    found = text(
        tables.changes(RunLog(Path(), summary=dict(changes=[slower, dict(slower, iter=9)])))
    )
    assert [one for one in found.split('|') if one.strip()][:8] == [
        'from iteration', 'cause', 'usual time before', 'usual time after', '301', 'SlowHook',
        '100 ms', '300 ms',
    ]  # fmt: skip
    assert tables.changes(RunLog(Path())) is None
