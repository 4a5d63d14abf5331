"""The page in a real browser; skipped without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mmtempo.report import read_log
from mmtempo.report.html.page import write_html
from tests.testing.common import ROOT
from tests.testing.made_up import write_run

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
# Values of Blink's setting for prefers-color-scheme.
SCHEMES = dict(dark=0, light=1)
SURFACES = dict(dark='#1d2126', light='#ffffff')


@pytest.fixture(scope='module')
def browser() -> str:
    for path in filter(None, [os.environ.get('MMTEMPO_CHROMIUM'), *map(shutil.which, NAMES)]):
        # Ubuntu's chromium-browser may be a script that only names the package.
        if subprocess.run([path, '--version'], capture_output=True, timeout=50).returncode == 0:
            return path
    pytest.skip(f'no browser: none of {", ".join(NAMES)} and no MMTEMPO_CHROMIUM')


@pytest.fixture(scope='module')
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('run')
    return write_html(read_log(write_run(folder, iterations=300)), folder / 'report.html')


def visit(browser: str, page: Path, profile: Path, *options: str) -> tuple[str, str]:
    """Return the page after its scripts have run, and the log of the browser."""
    done = subprocess.run(
        [
            browser, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
            '--enable-logging=stderr', '--v=0', f'--user-data-dir={profile}',
            '--no-first-run', '--disable-background-networking', '--disable-component-update',
            # Requests to a network fail, which the console logs.
            '--host-resolver-rules=MAP * ~NOTFOUND', '--window-size=1280,1000',
            '--virtual-time-budget=10000', *options, '--dump-dom', page.as_uri(),
        ],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


# Drawing all charts takes seconds: only one scheme is not slow.
@pytest.mark.parametrize('scheme', ['dark', pytest.param('light', marks=pytest.mark.slow)])
def test_charts_are_drawn_without_a_network(
    scheme: str, browser: str, report: Path, tmp_path: Path
) -> None:
    dom, log = visit(
        browser, report, tmp_path / 'profile',
        f'--blink-settings=preferredColorScheme={SCHEMES[scheme]}',
    )  # fmt: skip
    assert 'CONSOLE' not in log, log
    assert 'data-charts="drawn"' in dom
    assert dom.count('class="plot-container') == 7
    assert dom.count('class="main-svg"') >= 7
    assert dom.count('class="point"') > 10
    assert dom.count('class="legend"') == 4
    # The charts have the colors of the scheme.
    assert f'data-surface="{SURFACES[scheme]}"' in dom


WIDTHS = """<script>
const all = [...document.querySelectorAll('.sentence')].map((one) => one.clientWidth);
document.documentElement.dataset.sentences = `${all.length} of ${Math.min(...all)}`;
</script>"""


def test_narrow_page_has_room_for_sentences_and_charts(
    browser: str, report: Path, tmp_path: Path
) -> None:
    page = tmp_path / 'narrow.html'
    text = report.read_text(encoding='utf-8')
    page.write_text(text.replace('</main>', f'</main>{WIDTHS}'), encoding='utf-8')
    dom, log = visit(browser, page, tmp_path / 'profile', '--window-size=500,1000')
    assert 'CONSOLE' not in log, log
    # Without a minimum width, the last column was 20 px wide and 200 px high.
    assert re.search(r'data-sentences="[1-9]\d* of 260"', dom)
    # Legends of phases took two thirds of a chart; the table has the same colors.
    drawn = dict(re.findall(r'id="chart-(\w+)"(.*?)</figure>', dom, re.S))
    legends = {name for name, figure in drawn.items() if 'class="legend"' in figure}
    assert legends == {'throughput', 'memory'}


def test_tables_are_shown_without_decompression(browser: str, report: Path, tmp_path: Path) -> None:
    page = tmp_path / 'old.html'
    text = report.read_text(encoding='utf-8')
    page.write_text(
        text.replace('<main>', '<main><script>delete window.DecompressionStream</script>'),
        encoding='utf-8',
    )
    dom, log = visit(browser, page, tmp_path / 'profile')
    assert 'CONSOLE' not in log, log
    assert 'plot-container' not in dom
    assert dom.count('This browser cannot unpack the charts') >= 7
    assert 'AsyncCheckpointHook' in dom


@pytest.mark.parametrize(
    ('tools', 'message'),
    [
        ({}, 'no Chromium, and not root on a system with apt-get'),
        ({'apt-get': 'exit 100'}, 'Chromium could not be installed'),
        ({'apt-get': 'echo apt-get "$@"'}, 'apt-get install -y'),
        ({'chromium': 'exit 0', 'apt-get': 'exit 100'}, ''),
    ],
)
def test_ci_installs_a_browser_and_continues_without(
    tools: dict, message: str, tmp_path: Path
) -> None:
    for name in ('bash', 'dirname'):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    stubs = {'make': 'echo "$0 $1"', 'id': 'echo 0', 'timeout': 'shift; "$@"', **tools}
    for name, body in stubs.items():
        (tmp_path / name).write_text(f'#!{shutil.which("bash")}\n{body}\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [str(ROOT / '.ci/run')], env=dict(PATH=str(tmp_path)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith('make test\n')
    assert message in done.stderr
    assert bool(message) == bool(done.stderr)
