"""Reduction of a case to the axes that a difference needs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.testing.differential.cases import Case, settled
from tests.testing.differential.run_case import Found, run_case


def shrunk(case: Case, found: Found) -> Case:
    """Return the case without the axes that the difference does not need."""
    for name in list(case):
        if name not in case:
            continue
        parts = [{key: value for key, value in case.items() if key != name}]
        if name == 'hooks':
            parts += [{**case, 'hooks': (hook,)} for hook in case['hooks']]
        for part in parts:
            candidate = settled(part)
            if candidate != case and shows(candidate, found):
                case = candidate
                break
    return case


def shows(case: Case, found: Found) -> bool:
    """Return whether a case has a difference of this kind in the same training."""
    folder = '/dev/shm' if os.path.isdir('/dev/shm') else None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        directions = 0 if found.leg == 'whole' else None
        rows, *_ = run_case(case, Path(scratch), directions=directions)
    return any(
        (one.leg, one.arm, one.difference.kind) == (found.leg, found.arm, found.difference.kind)
        for one in rows
    )
