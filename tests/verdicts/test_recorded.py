"""The verdict judges each recorded summary of the graded set rightly."""

from __future__ import annotations

import pytest

from tests.verdicts.cases import CASES
from tests.verdicts.healthy import ALL as HEALTHY_CASES
from tests.verdicts.judging import LARGEST
from tests.verdicts.live import RECORDED, recorded
from tests.verdicts.sick import SICK


def names(cases: list) -> list[str]:
    return [case.name for case in cases]


def test_all_cases_are_recorded() -> None:
    assert (len(SICK), len(HEALTHY_CASES), len(CASES)) == (24, 24, 48)
    assert {path.stem for path in RECORDED.glob('*.json')} == set(CASES)
    assert all(path.stat().st_size < LARGEST for path in RECORDED.glob('*.json'))


@pytest.mark.parametrize('name', names(SICK))
def test_first_finding_is_the_cause_with_its_seconds(name: str) -> None:
    graded = recorded(CASES[name])
    assert graded.found.key == graded.case.key
    assert graded.found.seconds == pytest.approx(graded.true, rel=0.15)


@pytest.mark.parametrize('name', names([case for case in SICK if case.fix]))
def test_override_that_fixes_it_is_advised(name: str) -> None:
    graded = recorded(CASES[name])
    keys = [override.partition('=')[0] for override in graded.found.overrides]
    assert graded.case.fix in keys


@pytest.mark.parametrize('name', names(HEALTHY_CASES))
def test_nothing_is_found_in_a_healthy_run(name: str) -> None:
    graded = recorded(CASES[name])
    assert graded.found.key == 'healthy'
    assert graded.found.sentences == []
