"""Run the scripts of `tools/` in processes, as on a command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.testing.common import ROOT, tiny_options


def command(script: str, *words: object, options: dict | None = None) -> list[str]:
    """Return the command line of a tool.

    Args:
        script: Name of the script in `tools/`.
        words: Arguments of the script.
        options: Entries of `--cfg-options`. Defaults to None.
    """
    line = [sys.executable, str(ROOT / 'tools' / script), *map(str, words)]
    if options:
        line += ['--cfg-options', *(f'{k}={v}' for k, v in options.items())]
    return line


def run(script: str, *words: object, options: dict | None = None, code: int = 0) -> str:
    """Return the output of a tool; fail unless its exit code is `code`."""
    done = subprocess.run(
        command(script, *words, options=options), capture_output=True, text=True, check=False
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text[-4000:]
    return text


def tiny(root: str, work: Path, iters: int = 4) -> dict:
    """Return `tiny_options` as they are given on a command line."""
    options = tiny_options(root, work, iters)
    grid = 'model.view_transform.grid'
    return {k: v for k, v in options.items() if k not in (grid, 'work_dir', 'experiment_name')}
