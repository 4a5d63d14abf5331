"""All cases of the graded set by name."""

from __future__ import annotations

from tests.verdicts.healthy import ALL as HEALTHY_CASES
from tests.verdicts.sick import SICK

CASES = {case.name: case for case in (*SICK, *HEALTHY_CASES)}
