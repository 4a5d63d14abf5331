"""The tables of the page: escaped cells, bars, colors, and what only the page shows."""

from __future__ import annotations

import re

from mmtempo.report.html import tables
from mmtempo.report.sections import Section, Sentence, Share


def text(markup: object) -> str:
    return re.sub(r'<[^>]*>', '|', str(markup))


def test_section_has_a_table_and_notes() -> None:
    rows = [['<a>', Share(0.25), 7], ['b', Share(None), 8]]
    section = Section('Title', ('<name', 'share', '+count'), rows, ('A <note>.',))
    found = str(tables.render(section))
    assert '<td>&lt;a&gt;</td>' in found
    assert '<span class="bar" style="--w:25.0%"></span><span class="share">25 %</span>' in found
    assert '<td class="n">8</td>' in found
    assert '<th scope="col">name</th><th class="n" scope="col">share</th>' in found
    assert found.endswith('<p class="note">A &lt;note&gt;.</p>')
    assert 'swatch' not in found


def test_first_column_may_have_colors() -> None:
    found = str(tables.render(Section('', ('<phase',), [['a'], ['b']]), dict(a='--green')))
    assert '<i class="swatch" style="--c:var(--green)"></i>a<' in found
    assert '<i class="swatch" style="--c:var(--grey)"></i>b<' in found


def test_sentences_have_a_minimum_width_and_evidence() -> None:
    """The class `sentence` has a minimum width in page.css."""
    rows = [[Sentence('It <took> long.', dict(shape=[1, 2], x=None, y_z=0.5, files=[]))]]
    found = str(tables.render(Section('', ('<a',), rows)))
    assert '<div class="sentence">It &lt;took&gt; long.<div class="chips">' in found
    assert 'shape 1 \N{MULTIPLICATION SIGN} 2||y z 0.500|' in text(found)
    assert 'files' not in found
    long = Sentence('', dict(samples=[*range(20)], slowest_sample=171, swap_in=1 << 20))
    found = text(tables.render(Section('', ('<a',), [[long]])))
    assert 'samples 0, 1, 2, 3, 4, 5, 6, 7, …|' in found
    assert 'slowest sample 171|' in found
    assert 'read from swap 1.00 MiB' in found
    assert str(tables.render(Section('', ('<a',), [[Sentence('b')]]))).count('<div') == 2


def test_memory_shows_last_and_extreme_values() -> None:
    sample = dict(ram_used=0.5, device=dict(allocated=1 << 30, throttle=[]))
    memory = tables.memory(dict(memory=dict(now=sample, peak=dict(ram_used=0.75))))
    found = text(tables.render(memory))
    assert 'RAM of the machine in use||50 %||75 %' in found
    assert 'device: allocated||1.00 GiB||\N{EN DASH}' in found


def test_memory_of_a_container_is_named() -> None:
    sample = dict(ram_used=0.5, ram_total=1 << 30, ram_of='the container', tree_rss=1 << 30)
    memory = tables.memory(dict(memory=dict(now=sample, peak=dict(ram_used=0.75))))
    found = text(tables.render(memory))
    assert 'RAM of the container in use||50 %||75 %' in found
    assert 'RAM of the container||1.00 GiB' in found
    assert 'the machine' not in found
    assert 'all processes of the training (RSS: shared memory counts for each)||1.00' in found


def test_changes_of_the_usual_time_have_their_cause() -> None:
    slower = dict(iter=301, old=0.1, new=0.3, cause='SlowHook')
    found = text(tables.render(tables.changes(dict(changes=[slower, dict(slower, iter=9)]))))
    assert [one for one in found.split('|') if one.strip()][:8] == [
        'from iteration', 'cause', 'usual time before', 'usual time after', '301', 'SlowHook',
        '100 ms', '300 ms',
    ]  # fmt: skip


def test_settings_are_listed_without_none() -> None:
    values = dict(a_b=True, c=None, versions=dict(d=[1, 2], e=2.0, f=0.5))
    found = text(tables.render(tables.settings('Settings', values)))
    assert [one for one in found.split('|') if one.strip()] == [
        'a b', 'yes', 'd', '1, 2', 'e', '2', 'f', '0.500',
    ]  # fmt: skip


def test_empty_run_has_no_tables() -> None:
    assert tables.render(Section('', ('<a',), [])) is None
    for section in (tables.memory({}), tables.changes({}), tables.settings('', {})):
        assert tables.render(section) is None
