"""Run the scripts of `tools/` in processes, as on a command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def run(
    script: str, *words: object, options: dict | None = None, code: int = 0, **kwargs: Any
) -> str:
    """Return the output of a tool; fail unless its exit code is `code`.

    Args:
        script: Name of the script in `tools/`.
        words: Arguments of the script.
        options: Entries of `--cfg-options`. Defaults to None.
        code: Expected exit code. Defaults to 0.
        kwargs: Arguments of `subprocess.run`.
    """
    done = subprocess.run(
        command(script, *words, options=options), capture_output=True, text=True, **kwargs
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text[-4000:]
    return text


def scores(text: str) -> dict[str, float]:
    """Return the means of the last evaluation in the output of a tool."""
    line = [line for line in text.splitlines() if re.search(r'\) \[.*mIoU:', line)][-1]
    return {key: float(value) for key, value in re.findall(r'(mIoU\w*): (\S+)', line)}


def tiny(root: str, work: Path, iters: int = 4) -> dict:
    """Return `tiny_options` as they are given on a command line."""
    options = tiny_options(root, work, iters)
    grid = 'model.view_transform.grid'
    return {k: v for k, v in options.items() if k not in (grid, 'work_dir', 'experiment_name')}
