"""What is said of one slow iteration, of a pace that changes, and of a slow spell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_timing.test_statistics import Run


def trained(before: int = 0, **at: Any) -> tuple[Run, list[dict], list[dict]]:
    """600 iterations of 100 ms, of which those from `slow` to `until` are slower."""
    run, stalls, changes = Run(before, **at.get('options', {})), [], []
    for number in range(600):
        is_slow = at['slow'] <= number < at['until']
        run.collected += at.get('collected', 0.0) * is_slow
        note = at.get('note') if number == at['slow'] else None
        run.go(note=note, **(at['more'] if is_slow else {}))
        if number % 50 == 49:
            stalls += run.meter.take()[1]
            changes += run.meter.take_changes()
    return run, stalls + run.meter.take(is_last=True)[1], changes + run.meter.take_changes()


@pytest.mark.parametrize('before', [0, 7000])
def test_a_slow_spell_is_one_entry_with_its_cause(before: int) -> None:
    more = {'hook:Slow': 0.2}
    run, (spell,), changes = trained(before, slow=300, until=340, more=more)
    assert (spell['iter'], spell['until'], spell['iterations']) == (
        before + 301, before + 340, 40,
    )  # fmt: skip
    assert (spell['category'], spell['cause'], spell['phase']) == ('hook', 'Slow', 'hook:Slow')
    assert spell['lost'] == pytest.approx(8.0, rel=0.05)
    assert (spell['usual'], spell['seconds']) == (
        pytest.approx(0.1, 0.05),
        pytest.approx(0.3, 0.05),
    )
    assert spell['text'].startswith('and 39 more took 30')
    assert spell['text'].endswith(' each instead of 100 ms: Slow')
    slower, faster = changes
    assert slower['iter'] == before + 301
    assert slower['text'].endswith('from here on: Slow')
    assert faster['iter'] == before + 341
    assert 'cause' not in faster
    summary = run.meter.summary({})
    assert summary['lost']['by_cause'] == dict(
        Slow=dict(seconds=spell['lost'], count=40, category='hook')
    )
    assert summary['steady'] == pytest.approx(10, rel=0.02)
    assert summary['changes'] == changes


def test_to_the_end_of_the_run() -> None:
    _, (spell,), (change,) = trained(slow=300, until=600, more=dict(step=0.2))
    assert spell['until'] == 600
    assert 'up to the last one' in spell['text']
    assert change['phase'] == spell['phase'] == 'step'


def test_evidence_of_a_pace_is_that_of_its_iterations() -> None:
    _, (spell,), (slower, _) = trained(
        slow=300, until=340, more=dict(step=0.2), collected=0.15,
        options=dict(machine=lambda start, end: dict(psi_io=end - start)),
    )  # fmt: skip
    assert (slower['category'], slower['cause']) == ('gc', 'garbage collection')
    assert slower['evidence']['gc_seconds'] == pytest.approx(0.15)
    assert slower['evidence']['psi_io'] == pytest.approx(0.3, rel=0.1)  # of one, not of sixteen
    assert spell['cause'] == 'garbage collection'


def test_a_pace_without_a_cause_is_told_by_its_phase() -> None:
    _, (spell,), (slower, _) = trained(slow=300, until=340, more=dict(step=0.2))
    assert (slower['category'], slower['cause']) == ('unexplained', 'step')
    assert (spell['category'], spell['cause']) == ('pace', 'slower step')


def test_larger_inputs_take_longer_and_lose_nothing() -> None:
    note = dict(shape=(4, 3, 900, 1600), is_new_shape=True)
    run, stalls, (slower, _) = trained(slow=300, until=450, more=dict(step=0.2), note=note)
    assert slower['cause'] == 'new input shape'
    assert stalls == []
    assert run.meter.summary({})['lost']['seconds'] == 0


@pytest.mark.parametrize('first', [1.0, 5.0])
def test_the_first_of_a_new_shape_may_take_longer_still(first: float) -> None:
    run, stalls = Run(), []
    for number in range(600):
        is_first = number == 300
        note = dict(shape=(4, 3, 900, 1600), is_new_shape=True) if is_first else None
        run.go(note=note, step=0.1 * (number >= 300) * (first if is_first else 1))
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    stalls += run.meter.take(is_last=True)[1]
    assert {stall['cause'] for stall in stalls} <= {'new input shape'}
    assert not any('iterations' in stall for stall in stalls)


def test_larger_inputs_in_the_last_window() -> None:
    note = dict(shape=(4, 3, 900, 1600), is_new_shape=True)
    run = Run()
    for number in range(400):
        run.go(note=note if number == 360 else None, step=0.2 * (number >= 360))
    assert run.meter.take(is_last=True)[1] == []


def test_each_of_two_paces_has_its_cause() -> None:
    run, stalls = Run(), []
    for number in range(600):
        run.go(data=0.1 * (300 <= number < 340), **{'hook:Slow': 0.3 * (340 <= number < 500)})
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    stalls += run.meter.take(is_last=True)[1]
    assert [(one['iter'], one['iterations'], one['cause']) for one in stalls] == [
        (301, 40, 'waiting for data'),
        (341, 160, 'Slow'),
    ]


def test_a_spell_that_goes_on_is_in_the_summary_and_is_not_told_twice() -> None:
    run = Run()
    for number in range(500):
        run.go(step=0.2 * (number >= 300))
    window, stalls = run.meter.take()
    assert (stalls, window['lost'] if window else None) == ([], 0)
    early = run.meter.summary({})
    assert early['lost']['seconds'] == pytest.approx(200 * 0.2, rel=0.05)
    assert early['lost']['by_cause']['slower step']['count'] == 200
    assert [one['iterations'] for one in early['stalls']] == [200]
    assert run.meter.lost_share == pytest.approx(early['lost']['share'])
    assert len(run.meter.take(is_last=True)[1]) == 1
    late = run.meter.summary({})
    assert late['lost'] == early['lost']
    assert len(late['stalls']) == 1


def test_a_pace_that_no_phase_explains_is_nobodys() -> None:
    """Each phase is slow in a third of the iterations only."""
    run, stalls = Run(), []
    for number in range(600):
        late = ('step', 'hook:Slow', 'clip')[number % 3]
        run.go(**{late: 0.2 * (300 <= number < 400)})
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    (spell,) = stalls + run.meter.take(is_last=True)[1]
    assert (spell['iter'], spell['iterations'], spell['cause']) == (301, 100, 'slower pace')
    assert spell['category'] == 'pace'
    assert spell['lost'] == pytest.approx(100 * 0.2, rel=0.05)


def test_a_pace_is_compared_with_the_one_before_it() -> None:
    """Not with what was usual before that, though there was more of it."""
    run, changes = Run(), []
    for number in range(500):
        run.go(step=0.0 if 300 <= number < 340 else 0.2)
        if number % 50 == 49:
            run.meter.take()
            changes += run.meter.take_changes()
    faster, slower = changes
    assert (faster['iter'], slower['iter']) == (301, 341)
    assert slower['cause'] == 'step'
