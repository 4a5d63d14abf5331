"""tools/report.py as a user calls it: files, exit codes, errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.testing.common import ROOT
from tests.testing.made_up import made_up_run, write_lines, write_run, write_summary


def tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / 'tools'))
    try:
        import report
    finally:
        sys.path.pop(0)
    return report


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    """Run the tool with these arguments; return its exit code."""
    monkeypatch.setattr(sys, 'argv', ['report.py', *map(str, words)])
    try:
        return tool().main()
    except SystemExit as end:
        return end.code


@pytest.fixture(scope='module')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work dirs of two runs; the speed of `slow` is 10 % below that of `fast`."""
    folder = tmp_path_factory.mktemp('runs')
    write_run(folder / 'fast', iterations=200)
    write_run(folder / 'slow', iterations=200, slowness=1 / 0.9)
    return folder


def test_page_and_trace_are_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page, trace = tmp_path / 'a.html', tmp_path / 'a.json'
    assert call(monkeypatch, runs / 'fast', '--out', page, '--trace', trace) == 0
    out = capsys.readouterr().out
    assert page.read_text().startswith('<!DOCTYPE html>')
    assert len(json.loads(trace.read_text())['traceEvents']) > 1000
    assert re.search(rf'report  {re.escape(str(page))}  \(\d\.\d\d MiB\)', out)
    assert f'trace   {trace}' in out
    assert '17 % of the time was lost to stalls' in out
    assert '--cfg-options train_dataloader.num_workers=12' in out
    assert not (runs / 'fast/tempo_report.html').exists()


def test_page_is_written_to_the_work_dir_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    opened: list[str] = []
    monkeypatch.setattr('webbrowser.open', opened.append)
    write_lines(tmp_path, made_up_run(iterations=100)[1][:-1])  # a killed run
    assert call(monkeypatch, tmp_path, '--open') == 0
    assert opened == [(tmp_path / 'tempo_report.html').as_uri()]
    assert 'it was killed' in capsys.readouterr().out


def test_run_without_data_for_a_trace_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_lines(tmp_path, made_up_run(iterations=100)[1][:-1])
    assert call(monkeypatch, tmp_path, '--trace', tmp_path / 't.json') == 2
    out, error = capsys.readouterr()
    assert f'report  {tmp_path}/tempo_report.html' in out
    assert (tmp_path / 'tempo_report.html').read_text().startswith('<!DOCTYPE html>')
    assert not (tmp_path / 't.json').exists()
    assert 'cannot make a trace' in error
    assert 'nothing was written' not in error


@pytest.mark.parametrize(
    ('allowed', 'code'), [(None, 0), ('5%', 1), ('0.05', 1), ('5', 1), ('10.1%', 0), ('0.11', 0)]
)
def test_compare_exits_with_1_beyond_the_allowed_slowdown(
    allowed: str | None, code: int, runs: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    words = ['--fail-if-slower', allowed] if allowed else []
    assert call(monkeypatch, 'compare', runs / 'fast', runs / 'slow', *words) == code
    out = capsys.readouterr().out
    assert 'samples/s, end to end' in out
    assert ('B is 10.0 % slower than A' in out) == bool(allowed)
    assert call(monkeypatch, 'compare', runs / 'slow', runs / 'fast', *words) == 0


@pytest.mark.parametrize('crashed', ['a', 'b'])
def test_crashed_run_is_not_judged(
    crashed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A run that crashed early may be the faster one, but did not succeed."""
    for name in 'ab':
        (tmp_path / name).mkdir()
        summary, lines = made_up_run(iterations=200)
        if name == crashed:
            summary.update(status='crashed', iterations=100, samples_per_s=1000.0)
        write_lines(tmp_path / name, lines)
        write_summary(tmp_path / name, summary)
    words = ['compare', tmp_path / 'a', tmp_path / 'b']
    assert call(monkeypatch, *words) == 0
    assert call(monkeypatch, *words, '--fail-if-slower', '5%') == 2
    out, error = capsys.readouterr()
    assert 'faster' not in out
    which = f'{crashed.upper()} ({tmp_path / crashed})'
    assert f'cannot judge these runs: {which} crashed after 100 iterations' in error


def test_runs_of_another_model_are_not_judged(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    summary, lines = made_up_run(iterations=200)
    for name in 'AB':
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name, lines)
        setting = dict(summary['setting'], model=name)
        write_summary(tmp_path / name, dict(summary, setting=setting))
    words = ['compare', tmp_path / 'A', tmp_path / 'B']
    assert call(monkeypatch, *words) == 0
    assert call(monkeypatch, *words, '--fail-if-slower', '5%') == 2
    out, error = capsys.readouterr()
    assert 'cannot be compared: model A against B' in out
    assert 'cannot judge these runs: model A against B' in error
    assert not {'better', 'worse'} & set(out.split())


def test_errors_name_the_argument_or_file(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    write_lines(tmp_path, made_up_run(iterations=1)[1][:1])
    for words, message in (
        ([runs / 'none'], f'report.py: error: {runs}/none: no such file or folder'),
        ([runs], 'found no log of a training'),
        ([tmp_path, '--trace', tmp_path / 't.json'], 'cannot make a trace'),
        ([runs / 'fast', '--out', runs / 'no/a.html'], f'--out: the folder {runs}/no does not'),
        ([runs / 'fast', '--trace', runs], f'--trace: {runs} is a folder'),
        (['compare', runs / 'fast'], 'required: B'),
        (['compare', runs / 'fast', runs / 'none'], f'error: {runs}/none: no such file'),
        (['compare', runs / 'fast', tmp_path], 'found no speed that both runs have'),
        (
            ['compare', runs / 'fast', runs / 'slow', '--fail-if-slower', 'five'],
            "--fail-if-slower: found 'five', expected",
        ),
        (['compare', runs / 'fast', runs / 'slow', '--fail-if-slower', ''], "found ''"),
    ):
        assert call(monkeypatch, *words) == 2
        error = capsys.readouterr().err
        assert message in error
        # A comparison never writes a file.
        assert 'compare' not in words or 'nothing was written' not in error


FULL = Path('/dev/full')  # each write to it fails as on a full disk
needs_full = pytest.mark.skipif(not FULL.exists(), reason='no /dev/full')


@pytest.mark.parametrize('full', [False, pytest.param(True, marks=needs_full)])
def test_unwritable_page_is_an_error_without_traceback(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    work = write_run(tmp_path / 'work', iterations=100)
    if full:
        (work / 'tempo_report.html').symlink_to(FULL)
    else:
        (work / 'tempo_report.html').mkdir()
    assert call(monkeypatch, work) == 2
    error = capsys.readouterr().err
    why = 'No space left on device' if full else 'Is a directory'
    assert f'tempo_report.html: cannot be written ({why}); pass another --out FILE' in error
    assert 'Traceback' not in error


@needs_full
def test_unwritable_trace_is_an_error_without_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    work = write_run(tmp_path / 'work', iterations=100)
    (tmp_path / 't.json').symlink_to(FULL)
    assert call(monkeypatch, work, '--trace', tmp_path / 't.json') == 2
    error = capsys.readouterr().err
    assert 't.json: cannot be written (No space left on device); pass another --trace' in error
    assert 'Traceback' not in error


def test_report_needs_plotly_and_compare_does_not(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, 'plotly.offline', None)
    assert call(monkeypatch, runs / 'fast', '--out', tmp_path / 'a.html') == 2
    assert 'pip install "mmtempo[report]"' in capsys.readouterr().err
    assert call(monkeypatch, 'compare', runs / 'fast', runs / 'slow') == 0


@pytest.mark.parametrize(
    ('words', 'texts'),
    [
        (['--help'], ('ThroughputMonitorHook', '--trace FILE.json', 'report.py compare')),
        (['compare', '--help'], ('--fail-if-slower SLOWDOWN', '5% or 5 is five percent')),
    ],
)
def test_help_explains_the_options(
    words: list, texts: tuple, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert call(monkeypatch, *words) == 0
    out = ' '.join(capsys.readouterr().out.split())
    for text in texts:
        assert text in out
