"""What is said beside the figures of a stage profile."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.stages import notes, title


@pytest.mark.parametrize(
    ('found', 'text'),
    [
        (dict(iterations=100, asked=100), ', in 100 iterations'),
        (dict(iterations=1, asked=1), ', in 1 iteration'),
        (dict(iterations=7, asked=100), ', 7 of 100 iterations: the run had ended'),
        (dict(iterations=50), ', in 50 iterations'),  # of a file from before
        ({}, ''),
    ],
)
def test_how_much_was_measured(found: dict[str, Any], text: str) -> None:
    assert title(found) == f'Forward pass by stage{text}'


def test_why_shares_are_not_what_somebody_expects() -> None:
    stages = [dict(name=name) for name in ('neck', 'backbone.stages.2', 'backbone', 'head')]
    never, partly, nested = notes(
        dict(stages=stages, never_called=['a', 'b.0'], by_children=['head'])
    )
    assert never.startswith('Never called in the forward pass: a, b.0. ')
    assert partly.startswith('Measured from the first child to the last: head. ')
    assert nested == 'A part within another one counts for both.'


def test_nothing_to_say() -> None:
    stages = [dict(name='head'), dict(name='head2')]
    assert notes(dict(stages=stages, never_called=[], by_children=[])) == []
    assert notes(dict(stages=None, never_called=None)) == []
