"""Both lock files pin all requirements."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from tests.testing.common import ROOT


@pytest.mark.parametrize('stack', ['onedl', 'openmmlab'])
def test_each_requirement_is_pinned(stack: str) -> None:
    lines = (ROOT / f'requirements/lock-{stack}.txt').read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith('#')]
    assert len(pinned) > 40
    assert all(re.fullmatch(r'[\w.-]+==[\w.]+(; .+)?', line) for line in pinned)


def test_environment_has_the_pinned_versions() -> None:
    from mmtempo.dependencies import active_stack, installed_versions

    stack = active_stack(installed_versions())
    text = (ROOT / f'requirements/lock-{stack}.txt').read_text()
    for name in ('numpy', 'ruff', 'mypy', 'pytest', 'rich'):
        assert f'{name}=={metadata.version(name)}' in text
