"""Colors of phases and categories."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmtempo.report.html import colors
from mmtempo.report.html.colors import phase_colors
from mmtempo.timing.causes import STEP


def test_known_phases_have_fixed_colors_and_hooks_distinct_ones() -> None:
    names = ['data', 'hook:A', 'forward', 'hook:B', 'hook:AsyncCheckpointHook', 'hook:MyLoggerHook']
    found = phase_colors(names)
    assert len(set(found.values())) == len(names)
    assert found['data'] == phase_colors(['data'])['data']
    assert found['hook:AsyncCheckpointHook'] == colors.CATEGORIES['checkpoint']
    assert found['hook:MyLoggerHook'] == colors.CATEGORIES['logging']
    assert len(phase_colors([f'hook:{i}' for i in range(30)])) == 30


@pytest.mark.parametrize('name', STEP)
def test_parts_of_a_step_have_fixed_colors(name: str) -> None:
    assert name in colors.PHASES


@pytest.mark.parametrize(
    'name', ['checkpoint: fence', 'checkpoint: wait for the writer', 'hook:SnapshotFence']
)
def test_all_phases_of_a_save_share_a_color(name: str) -> None:
    assert phase_colors([name]) == {name: colors.CATEGORIES['checkpoint']}


def test_style_sheet_defines_every_color() -> None:
    folder = Path(colors.__file__).parent
    sheet = (folder / 'page.css').read_text(encoding='utf-8')
    defined = set(re.findall(r'(--[\w-]+):', sheet))
    used: set[str] = set()
    for path in folder.glob('*.py'):
        used |= set(re.findall(r"'(--[a-z]+)'", path.read_text(encoding='utf-8')))
    assert len(used) > 20
    assert used <= defined
    assert set(colors.SYMBOLS) == set(colors.CATEGORIES)
