"""Time is attributed to a phase of the active timeline."""

from __future__ import annotations

import contextlib

from mmtempo.utils.phases import activate, charged_to, deactivate


class Fake:
    """A timeline that records what is carved out of it."""

    def __init__(self) -> None:
        self.now = 0
        self.entries: list[tuple[str, int]] = []

    def clock(self) -> int:
        return self.now

    def carve(self, name: str, nanoseconds: int) -> None:
        self.entries.append((name, nanoseconds))

    def carved(self) -> int:
        return sum(nanoseconds for _, nanoseconds in self.entries)


def test_nested_phases_are_not_counted_twice() -> None:
    timeline = Fake()
    activate(timeline)
    with charged_to('outer'):
        timeline.now += 5
        with charged_to('inner'):
            timeline.now += 2
    deactivate(timeline)
    assert timeline.entries == [('inner', 2), ('outer', 5)]


def test_time_until_an_error_is_attributed() -> None:
    timeline = Fake()
    activate(timeline)
    with contextlib.suppress(ValueError), charged_to('outer'):
        timeline.now += 5
        raise ValueError('broken')
    deactivate(timeline)
    assert timeline.entries == [('outer', 5)]


def test_nothing_is_attributed_without_an_active_timeline() -> None:
    timeline = Fake()
    activate(timeline)
    deactivate(timeline)
    with charged_to('outer'):
        timeline.now += 5
    assert timeline.entries == []


def test_an_older_timeline_does_not_deactivate_a_newer_one() -> None:
    older, newer = Fake(), Fake()
    activate(older)
    activate(newer)
    deactivate(older)
    with charged_to('outer'):
        newer.now += 5
    deactivate(newer)
    assert (older.entries, newer.entries) == ([], [('outer', 5)])


def test_end_of_a_nested_training_returns_to_the_outer_one() -> None:
    outer, inner = Fake(), Fake()
    activate(outer)
    activate(inner)
    deactivate(inner)
    deactivate(inner)  # no-op
    with charged_to('outer'):
        outer.now += 5
    deactivate(outer)
    assert (outer.entries, inner.entries) == ([('outer', 5)], [])
