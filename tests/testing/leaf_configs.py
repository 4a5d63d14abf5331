"""The leaf configs of the repository."""

from __future__ import annotations

import functools
from pathlib import Path

from mmengine.config import Config

from tests.testing.common import ROOT

LEAVES = sorted(path for path in (ROOT / 'configs').rglob('*.py') if '_base_' not in path.parts)


@functools.cache
def load_leaf(path: Path) -> Config:
    """Return a leaf config, which is read once; copy it before changing it."""
    return Config.fromfile(str(path))
