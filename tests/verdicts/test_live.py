"""The verdict judges each training of the graded set rightly, and its overrides fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verdicts.cases import CASES
from tests.verdicts.live import grade
from tests.verdicts.run import misses


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_live_training_is_judged_rightly(name: str, tmp_path: Path) -> None:
    assert misses([grade(CASES[name], tmp_path)]) == []
