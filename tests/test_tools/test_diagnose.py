"""`tools/diagnose.py` on a command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.testing.common import MINI, ROOT
from tests.testing.tool_commands import run, tiny


def test_waits_lists_synchronizations(bev_root: str, tmp_path: Path) -> None:
    options = tiny(bev_root, tmp_path / 'work', iters=50) | {'default_hooks.logger.interval': 50}
    text = run('diagnose.py', MINI, '--waits', '--iters', 2, options=options)
    assert (
        'host-device synchronizations: 3 per iteration with stock parts, 0 with mmtempo, '
        'over 2 iterations without log line or checkpoint'
    ) in text
    assert re.search(r'stock . mmtempo . kind', text)
    assert re.search(r'3 .\s+0 . scalar read .* mmengine/logging/message_hub.py:', text)
    assert 'model.decode_head: BEVPyramidHead is already a type of mmtempo' in text
    assert not (tmp_path / 'work').exists()


def test_short_training_is_an_error_message(bev_root: str, tmp_path: Path) -> None:
    options = tiny(bev_root, tmp_path / 'work', iters=2)
    options |= {'optim_wrapper.type': 'AmpOptimWrapper', 'default_hooks.logger.interval': 50}
    text = run('diagnose.py', MINI, '--waits', '--iters', 2, options=options, code=2)
    assert 'optim_wrapper: AmpOptimWrapper is kept, because --cfg-options sets it' in text
    assert 'diagnose.py: error: the run ended after 2 iterations, before one' in text
    assert 'Traceback' not in text


def test_mistake_in_arguments_is_an_error(tmp_path: Path) -> None:
    for arguments, message in (
        ([str(MINI)], 'nothing to report: add --waits'),
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
        assert message in result.stderr
