"""The text of the page."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mmtempo.report import RunLog, read_log
from mmtempo.report.html.page import page, plotly_script, write_html
from tests.testing.made_up import made_up_run, write_lines, write_run, write_summary

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)>"\'&'


class Elements(HTMLParser):
    """Parser that collects all elements and checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ('meta', 'br', 'img'):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def names(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.found if name == tag]


def data_of(text: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_file_is_complete_and_needs_no_network(tmp_path: Path) -> None:
    work = write_run(tmp_path / 'work')
    path = write_html(read_log(work), tmp_path / 'report.html')
    assert path.stat().st_size < 2_500_000
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != 'work'] == ['report.html']
    text = path.read_text(encoding='utf-8')
    elements = Elements(text)
    assert elements.open == []
    assert len(elements.names('figure')) == len(data_of(text)) == 7
    packed = re.search(r'id="plotly">([^<]*)<', text)
    assert packed
    assert gzip.decompress(base64.b64decode(packed[1])).decode() == plotly_script()
    # The page requests nothing from a network, and its policy forbids it.
    assert not [
        attributes
        for _, attributes in elements.found
        if {'src', 'href', 'srcset', 'action'} & set(attributes)
    ]
    assert "default-src 'none'" in text
    assert 'connect-src' not in text


def test_page_shows_verdict_figures_and_charts_in_order(tmp_path: Path) -> None:
    text = page(read_log(write_run(tmp_path)), '')
    for words in (
        '17 % of the time was lost to stalls',
        'data-copy="--cfg-options train_dataloader.num_workers=12"',
        'data-copy="--cfg-options train_dataloader.num_workers=12 train_cfg.val_interval=1000"',
        'every 8',
        'NVIDIA RTX 4090',
        'SwinTransformer',
        'The machine began to swap',
        'unexplained',
    ):
        assert words in text
    assert text.index('class="card verdict"') < text.index('class="tiles"') < text.index('<figure')


def test_charts_with_the_colors_of_a_table_need_no_legend(tmp_path: Path) -> None:
    text = page(read_log(write_run(tmp_path, iterations=200)), '')
    names = [chart['name'] for chart in data_of(text) if chart['has_key']]
    assert names == ['phases', 'recent']
    table = text[text.index('id="chart-shares"') : text.index('id="chart-phases"')]
    for chart in data_of(text):
        if chart['has_key']:
            missing = {one['name'] for one in chart['data'] if one['name'] not in table}
            assert missing <= {'other'}


def test_content_of_a_log_cannot_become_code(tmp_path: Path) -> None:
    summary, lines = made_up_run(iterations=100)
    summary['setting'] = dict(config=f'{EVIL}.py', loop=EVIL, **{EVIL: 1})
    summary['machine'] = dict(cpu=EVIL, accelerator=EVIL, versions={EVIL: EVIL})
    summary.update(status=EVIL, error=EVIL, warnings=[EVIL])
    summary['verdict'] = dict(headline=EVIL, why=[EVIL], change=[dict(override=EVIL, why=EVIL)])
    summary['phases'][EVIL] = dict(seconds=1.0, share=0.1)
    summary['ring']['phases'][0] = EVIL
    summary['lost']['by_cause'][EVIL] = dict(seconds=1.0, count=1, category=EVIL)
    summary['periods'] = [dict(every=EVIL, what=EVIL, cause=EVIL, count=1, of=EVIL, text=EVIL)]
    summary['ranks'] = {EVIL: dict(max=1.0, rank=EVIL)}
    summary['memory']['now']['device']['throttle'] = [EVIL]
    summary['stages']['stages'][0].update(name=EVIL, type=EVIL, calls=EVIL)
    summary['stages'].update(never_called=[EVIL], by_children=[EVIL])
    bad = dict(iter=7, seconds=1.0, lost=1.0, cause=EVIL, category=EVIL, phase=EVIL, text=EVIL)
    bad['evidence'] = {EVIL: EVIL, 'samples': [EVIL], 'worker': EVIL}
    summary['stalls'] = [bad]
    lines[1:1] = [dict(kind='stall', **bad)]
    next(line for line in lines if line['kind'] == 'window')['phases'][EVIL] = 0.1
    write_lines(tmp_path, lines)
    write_summary(tmp_path, summary)
    text = page(read_log(tmp_path), '')
    elements = Elements(text)
    assert elements.open == []
    assert len(elements.names('script')) == 3
    assert elements.names('img') == []
    assert not [a for _, a in elements.found if any(name.startswith('on') for name in a)]
    drawn = json.dumps(data_of(text))
    assert 'alert(2)' in drawn
    assert '<img' not in drawn


def test_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    summary, lines = made_up_run(iterations=2000)
    window = next(line for line in lines if line['kind'] == 'window')
    stall = next(line for line in lines if line['kind'] == 'stall')
    many = [dict(window, iter=50 * (i + 1), seconds=8 + i % 7 / 3) for i in range(4000)]
    many += [dict(stall, iter=40 * (i + 1)) for i in range(5000)]
    write_lines(tmp_path, [lines[0], *many])
    write_summary(tmp_path, summary)
    text = page(read_log(tmp_path), '')
    assert len(text) < 500_000
    assert 'the 600 costliest of 5000' in text
    throughput = data_of(text)[0]['data']
    assert len(throughput[0]['x']) == 800


def test_empty_sections_are_omitted(tmp_path: Path) -> None:
    text = page(RunLog(tmp_path), '')
    assert Elements(text).open == []
    for words in ('<figure', '<table', '<script', 'Warnings', 'Slow iterations', 'Machine'):
        assert words not in text
    assert 'No verdict was written' in text


def test_newer_run_is_named_before_the_verdict(tmp_path: Path) -> None:
    log = read_log(write_run(tmp_path, iterations=100))
    assert '&lt;newer&gt;' not in page(log, '')
    log.newer = 'there is a <newer> run'
    text = page(log, '')
    assert text.index('there is a &lt;newer&gt; run.') < text.index('class="card verdict"')


def test_killed_run_has_a_page(tmp_path: Path) -> None:
    summary, lines = made_up_run(iterations=500)
    write_lines(tmp_path, lines[:-1])
    write_summary(tmp_path, dict(summary, status='running'))
    text = page(read_log(tmp_path), '')
    assert 'of the time was lost to stalls' in text
    assert 'still running, or killed' in text
    assert len(data_of(text)) == 7


def test_run_killed_before_its_first_summary_has_charts_over_time(tmp_path: Path) -> None:
    _, lines = made_up_run(iterations=500)
    write_lines(tmp_path, lines[:-1])
    text = page(read_log(tmp_path), '')
    assert 'No verdict was written' in text
    assert 'still running, or killed' in text
    assert 'tempo_summary.json is missing' in text
    assert [chart['name'] for chart in data_of(text)] == ['throughput', 'phases', 'memory']


def test_missing_plotly_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'plotly.offline', None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "mmtempo\[report\]"'):
        write_html(RunLog(tmp_path), tmp_path / 'report.html')
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='folder .*nowhere does not exist'):
        write_html(RunLog(tmp_path), tmp_path / 'nowhere' / 'report.html')
