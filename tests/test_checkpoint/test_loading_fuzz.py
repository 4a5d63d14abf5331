"""Files made to break the safe loader end in an error, never in a crash or a call.

Covers `mmtempo.checkpoint.loading` and `mmtempo.checkpoint.safe_types`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.common import ROOT

KINDS = ('mutations', 'grammar', 'opcodes')


def fuzz(seed: int, count: int, folder: Path) -> dict[str, int]:
    """Return the number of cases by kind and result; fail with a case that ends otherwise."""
    case = folder / 'case'
    checks = dict(PYTHONMALLOC='debug', MALLOC_CHECK_='3', MALLOC_PERTURB_='165')
    done = subprocess.run(
        [sys.executable, '-m', 'tests.testing.fuzz_checkpoints', str(seed), str(count), str(case)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **checks},
    )  # fmt: skip
    found = case.read_bytes()[:2000] if case.exists() else b'no case was started'
    assert done.returncode == 0, f'{done.returncode}\n{found!r}\n{done.stderr[-4000:]}'
    return json.loads(done.stdout.splitlines()[-1])


def assert_reached(counts: dict[str, int], total: int) -> None:
    """Assert that there were files of each kind, and that some of them were loaded."""
    assert sum(counts.values()) == total
    for kind in KINDS:
        assert counts[f'{kind} refused'] > total // 10
        assert counts[f'{kind} loaded'] > 0


def test_broken_files_are_refused(tmp_path: Path) -> None:
    assert_reached(fuzz(0, 3000, tmp_path), 3000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_broken_files_are_refused(tmp_path: Path) -> None:
    assert_reached(fuzz(0, 100_000, tmp_path), 100_000)
