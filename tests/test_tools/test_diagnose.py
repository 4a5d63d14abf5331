"""The tool as it is called."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.test_tools.test_train import run, tiny
from tests.testing.common import MINI, ROOT


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


def test_what_ends_in_a_message(bev_root: str, tmp_path: Path) -> None:
    options = tiny(bev_root, tmp_path / 'work', iters=2)
    options |= {'optim_wrapper.type': 'AmpOptimWrapper', 'default_hooks.logger.interval': 50}
    text = run('diagnose.py', MINI, '--waits', '--iters', 2, options=options, code=2)
    assert 'optim_wrapper: AmpOptimWrapper is kept as --cfg-options has it' in text
    assert 'diagnose.py: error: the run ended after 2 iterations, before one' in text
    assert 'Traceback' not in text


def test_mistakes(tmp_path: Path) -> None:
    for arguments, says in (
        ([str(MINI)], 'say what to look for: --waits'),
        ([str(MINI), '--waits', '--iters', '0'], '--iters must be at least 1'),
        ([str(MINI), '--waits', '--launcher', 'slurm'], 'unrecognized arguments: --launcher'),
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
