"""The tool as it is called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ..conftest import MINI, ROOT
from .test_train import run, tiny


def test_waits(bev_root: str, tmp_path: Path) -> None:
    options = tiny(bev_root, tmp_path / 'work', iters=50) | {'default_hooks.logger.interval': 50}
    text = run('diagnose.py', MINI, '--waits', '--iters', 2, options=options)
    assert (
        "3 waits an iteration with stock parts, 0 with mmtempo's, over 2 iterations "
        'without log line or checkpoint'
    ) in text
    assert re.search(r'stock . mmtempo . kind', text)
    assert re.search(r'3 .\s+0 . scalar read .* mmengine/logging/message_hub.py:', text)
    assert "model.decode_head: BEVPyramidHead is mmtempo's own" in text
    assert not (tmp_path / 'work').exists()


def test_mistakes(tmp_path: Path) -> None:
    for arguments, says in (
        ([str(MINI)], 'say what to look for: --waits'),
        ([str(MINI), '--waits', '--iters', '0'], '--iters must be at least 1'),
        (['nowhere.py', '--waits'], 'config nowhere.py: no such file'),
    ):
        result = subprocess.run(
            [sys.executable, str(ROOT / 'tools/diagnose.py'), *arguments],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert result.returncode == 2
        assert says in result.stderr
