"""Each moment belongs to one phase of one iteration."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mmtempo.timing import timeline as module
from mmtempo.timing.timeline import MOST_PHASES, Timeline
from mmtempo.utils import phases
from mmtempo.utils.phases import activate, charged_to, deactivate
from tests.testing.timelines import SECOND, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of(clock: Clock, **options: int) -> Timeline:
    return Timeline('data', clock=clock, **options)


def run(timeline: Timeline, clock: Clock, **phases: float) -> None:
    """Run an iteration with these phases in order; the first is 'data'."""
    for name, seconds in phases.items():
        clock.go(seconds)
        if name == 'data':
            timeline.begin()
        else:
            timeline.mark(timeline.phase(name))


def test_phases_sum_to_the_time_of_their_iteration(clock: Clock) -> None:
    timeline = of(clock)
    run(timeline, clock, data=0.5, forward=0.2, backward=0.3)
    run(timeline, clock, data=0.1, forward=0.25, step=0.05)
    clock.go(1)  # waits for the batch of a third iteration
    assert timeline.last(10).numbers.tolist() == [1]
    timeline.end()
    block = timeline.last(10)
    assert timeline.names == ['data', 'forward', 'backward', 'step']
    assert block.numbers.tolist() == [1, 2]
    np.testing.assert_allclose(block.spent, [[0.5, 0.2, 0.3, 0], [0.1, 0.25, 0, 0.05]])
    np.testing.assert_allclose(block.starts, [0, 1.0])
    np.testing.assert_allclose(block.seconds, [1.0, 0.4])


def test_carved_time_belongs_to_its_own_phase(clock: Clock) -> None:
    timeline = of(clock)
    timeline.begin()
    activate(timeline)
    with charged_to('fence'):
        clock.go(0.25)
        with charged_to('writer'):
            clock.go(0.5)
    clock.go(1)
    timeline.mark(timeline.phase('step'))
    deactivate(timeline)
    timeline.end()
    spent = dict(zip(timeline.names, timeline.last(1).spent[0].tolist()))
    assert spent == dict(data=0, writer=0.5, fence=0.25, step=1.0)


def test_nothing_is_charged_without_an_active_timeline(clock: Clock) -> None:
    timeline, other = of(clock), of(clock)
    activate(timeline)
    deactivate(other)
    assert phases._active == [timeline]
    deactivate(timeline)
    with charged_to('fence'):
        clock.go(1)
    assert timeline.begin() == timeline.spent(0) == 1.0
    assert timeline.names == ['data']


def test_memory_is_constant_and_the_last_iterations_are_kept(clock: Clock) -> None:
    timeline = of(clock, capacity=8, facts=2, before=1000)
    for number in range(1001, 1101):
        clock.go(number / 1000)
        timeline.begin()
        timeline.set_facts((number, -number))
        timeline.annotate(number)
        assert timeline.number == number
        assert len(timeline.last(20)) == min(timeline.ended, 8)
        assert timeline.ended == number - 1001
    timeline.end()
    block = timeline.last(50)
    assert len(block) == 8
    assert block.numbers.tolist() == block.notes == [*range(1093, 1101)]
    np.testing.assert_allclose(block.spent[:, 0], block.numbers / 1000)
    assert block.facts[:, 1].tolist() == [-number for number in block.numbers]
    assert len(timeline.last(3)) == 3


def test_result_does_not_depend_on_how_often_it_is_read(clock: Clock) -> None:
    """Iterations are summed one by one, in groups, or when the ring buffer is full."""
    one_by_one, rarely, never = three = [of(clock, capacity=16, facts=1) for _ in range(3)]
    order, names = random.Random(0), ['forward', 'hook']
    for number in range(1, 101):
        clock.go(order.randrange(1, 5))
        for timeline in three:
            timeline.begin()
            timeline.annotate(number)
            if number % 2:
                timeline.set_facts((number,))
        for _ in range(order.randrange(4)):
            name, some = order.choice(names), order.randrange(2)
            clock.go(order.randrange(1, 5))
            for timeline in three:
                timeline.carve('fence', some * SECOND // 2)
                timeline.mark(timeline.phase(name))
        if order.random() < 0.3:
            for timeline in three:
                timeline.carve('fence', SECOND)  # out of the time of the next iteration
        one_by_one.last(1)
        if number % 7 == 0:
            rarely.last(1)
        assert max(len(timeline.log) for timeline in three) < 17 * 40
    for timeline in three:
        timeline.end()
    expected = one_by_one.last(16)
    assert expected.numbers.tolist() == expected.notes == [*range(85, 101)]
    assert np.isnan(expected.facts[:, 0]).tolist() == [number % 2 == 0 for number in range(85, 101)]
    for timeline in (rarely, never):
        block = timeline.last(16)
        for one, other in zip(vars(expected).values(), vars(block).values()):
            np.testing.assert_array_equal(one, other)


def test_memory_is_constant_without_reads(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    sums, summed = [], module._summed

    def count(*args: np.ndarray) -> np.ndarray:
        sums.append(args)
        return summed(*args)

    monkeypatch.setattr(module, '_summed', count)
    timeline = of(clock, capacity=8)
    most = 0
    for number in range(100):
        if number % 3 == 0:
            timeline.carve('fence', 1)
        timeline.begin()
        timeline.set_facts(())
        timeline.annotate(number)
        most = max(most, len(timeline.log))
    assert most == 2 * 12  # the first start, nine begun iterations, and two carved parts
    assert len(timeline._counted) == len(timeline._noted) <= 9
    assert len(sums) == 100 // 8


def test_an_iteration_begins_where_its_first_phase_ends(clock: Clock) -> None:
    timeline = of(clock)
    clock.go(2)
    assert timeline.begin() == 2.0
    clock.go(1)
    timeline.mark(timeline.phase('step'))
    clock.go(4)
    timeline.carve('fence', SECOND)
    assert timeline.begin() == 3.0
    assert timeline.opened == timeline.began + 3 * SECOND
    timeline.end()
    assert timeline.last(2).spent.tolist() == pytest.approx(np.array([[2, 1, 0], [3, 0, 1]]))


def test_first_iteration_gets_all_marks_before_it(clock: Clock) -> None:
    timeline = of(clock)
    for seconds in (1, 2):  # the second time after `end`
        begins = clock.now
        clock.go(seconds)
        timeline.mark(timeline.phase('evaluation'))
        clock.go(0.5)
        assert timeline.begin() == 0.5
        assert timeline.opened == begins
        clock.go(3)
        timeline.begin()
        timeline.end()
        timeline.end()  # no-op
        assert timeline.last(2).spent.tolist() == [[0.5, seconds], [3, 0]]
    assert timeline.ended == 4


def test_facts_and_notes_without_open_iteration_are_dropped(clock: Clock) -> None:
    timeline = of(clock, facts=1)
    timeline.set_facts((1,))
    timeline.annotate('before')
    timeline.begin()
    timeline.set_facts((2,))
    timeline.annotate('first')
    timeline.set_facts((3,))
    timeline.annotate('second')
    timeline.end()
    timeline.set_facts((4,))
    timeline.annotate('after')
    timeline.begin()
    timeline.end()
    block = timeline.last(2)
    assert block.notes == ['first', None]
    np.testing.assert_array_equal(block.facts, [[3], [np.nan]])
    assert not timeline._counted
    assert not timeline._noted


def test_interrupted_summation_is_repeated_by_the_next_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, summed = of(clock), module._summed
    for number in range(4):
        run(timeline, clock, data=1 + number, step=2)
        timeline.annotate(number)

    def interrupted(*args: np.ndarray) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, '_summed', interrupted)
    with pytest.raises(KeyboardInterrupt):
        timeline.last(4)
    monkeypatch.setattr(module, '_summed', summed)
    timeline.end()
    block = timeline.last(4)
    assert block.notes == [0, 1, 2, 3]
    assert block.numbers.tolist() == [1, 2, 3, 4]
    assert block.spent.tolist() == [[1 + number, 2] for number in range(4)]


def test_open_iteration_has_the_same_times_as_when_ended(clock: Clock) -> None:
    """A part that is carved out after the last mark belongs to the next iteration."""
    timeline, order = of(clock), random.Random(0)
    names = ['data', 'forward', 'hook', 'fence']
    total = left = 0.0
    for number in range(200):
        expected = dict.fromkeys(names, 0.0)
        clock.go(2)
        assert timeline.begin() == 2 - left
        expected.update(data=2 - left, fence=left)
        for _ in range(order.randrange(6)):
            name, carved, seconds = order.choice(names), order.randrange(3), order.randrange(3, 9)
            clock.go(seconds)
            timeline.carve('fence', carved * SECOND)
            timeline.mark(timeline.phase(name))
            expected['fence'] += carved
            expected[name] += seconds - carved
        left = 0.0
        if number % 2:
            timeline.carve('fence', SECOND)
            left = 1.0
        open_one = {name: timeline.spent(timeline.phase(name)) for name in names}
        assert open_one == pytest.approx({**expected, 'fence': expected['fence'] + left})
        if number % 3 == 0:
            timeline.last(1)
        if number % 5 == 0:
            timeline.end()
            spent = dict(zip(timeline.names, timeline.last(1).spent[0].tolist()))
            assert {name: spent.get(name, 0) for name in names} == pytest.approx(expected)
        total += sum(expected.values())
    timeline.end()
    assert timeline.last(1000).spent.sum() == pytest.approx(total)


def test_phases_over_the_limit_share_the_last_one(clock: Clock) -> None:
    timeline = of(clock)
    timeline.begin()
    for number in range(200):
        clock.go(1)
        timeline.mark(timeline.phase(f'hook {number}'))
    timeline.end()
    assert len(timeline.names) == MOST_PHASES
    assert timeline.names[-1] == 'other'
    assert timeline.last(1).seconds[0] == 200
    assert timeline.phase('hook 1') == 2


def test_time_before_start_belongs_to_no_iteration(clock: Clock) -> None:
    timeline = of(clock)
    clock.go(5)
    timeline.mark(0)
    timeline.start()
    clock.go(1)
    timeline.begin()
    timeline.end()
    block = timeline.last(1)
    assert block.seconds[0] == 1
    assert block.starts[0] == 5
