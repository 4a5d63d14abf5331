"""Records of single stalls, of changes of the level, and of slow spans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.timelines import MeasuredRun


def trained(before: int = 0, **at: Any) -> tuple[MeasuredRun, list[dict], list[dict]]:
    """Run 600 iterations of 100 ms, slower ones from `slow` to `until`."""
    run, stalls, changes = MeasuredRun(before, **at.get('options', {})), [], []
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
def test_slow_span_is_one_record_with_its_cause(before: int) -> None:
    more = {'hook:Slow': 0.2}
    run, (span,), changes = trained(before, slow=300, until=340, more=more)
    assert (span['iter'], span['until'], span['iterations']) == (
        before + 301, before + 340, 40,
    )  # fmt: skip
    assert (span['category'], span['cause'], span['phase']) == ('hook', 'Slow', 'hook:Slow')
    assert span['lost'] == pytest.approx(8.0, rel=0.05)
    assert (span['usual'], span['seconds']) == (
        pytest.approx(0.1, 0.05),
        pytest.approx(0.3, 0.05),
    )
    assert span['text'].startswith('and 39 more took 30')
    assert span['text'].endswith(' each instead of 100 ms: Slow')
    slower, faster = changes
    assert slower['iter'] == before + 301
    assert slower['text'].endswith('from here on: Slow')
    assert faster['iter'] == before + 341
    assert 'cause' not in faster
    summary = run.meter.summary({})
    assert summary['lost']['by_cause'] == dict(
        Slow=dict(seconds=span['lost'], count=40, category='hook')
    )
    assert summary['steady'] == pytest.approx(10, rel=0.02)
    assert summary['changes'] == changes


def test_span_to_the_end_of_the_run() -> None:
    _, (span,), (change,) = trained(slow=300, until=600, more=dict(step=0.2))
    assert span['until'] == 600
    assert 'up to the last iteration' in span['text']
    assert change['phase'] == span['phase'] == 'step'


def test_evidence_of_a_span_is_per_iteration() -> None:
    _, (span,), (slower, _) = trained(
        slow=300, until=340, more=dict(step=0.2), collected=0.15,
        options=dict(machine=lambda start, end: dict(psi_io=end - start)),
    )  # fmt: skip
    assert (slower['category'], slower['cause']) == ('gc', 'garbage collection')
    assert slower['evidence']['gc_seconds'] == pytest.approx(0.15)
    assert slower['evidence']['psi_io'] == pytest.approx(
        0.3, rel=0.1
    )  # of one iteration, not of sixteen
    assert span['cause'] == 'garbage collection'


def test_span_without_a_cause_names_its_phase() -> None:
    _, (span,), (slower, _) = trained(slow=300, until=340, more=dict(step=0.2))
    assert (slower['category'], slower['cause']) == ('unexplained', 'step')
    assert (span['category'], span['cause']) == ('pace', 'slower step')


def test_larger_inputs_are_no_loss() -> None:
    note = dict(shape=(4, 3, 900, 1600), is_new_shape=True)
    run, stalls, (slower, _) = trained(slow=300, until=450, more=dict(step=0.2), note=note)
    assert slower['cause'] == 'new input shape'
    assert stalls == []
    assert run.meter.summary({})['lost']['seconds'] == 0


@pytest.mark.parametrize('first', [1.0, 5.0])
def test_first_iteration_of_a_new_shape_is_no_separate_span(first: float) -> None:
    run, stalls = MeasuredRun(), []
    for number in range(600):
        is_first = number == 300
        note = dict(shape=(4, 3, 900, 1600), is_new_shape=True) if is_first else None
        run.go(note=note, step=0.1 * (number >= 300) * (first if is_first else 1))
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    stalls += run.meter.take(is_last=True)[1]
    assert {stall['cause'] for stall in stalls} <= {'new input shape'}
    assert not any('iterations' in stall for stall in stalls)


def test_larger_inputs_in_the_last_window_are_no_loss() -> None:
    note = dict(shape=(4, 3, 900, 1600), is_new_shape=True)
    run = MeasuredRun()
    for number in range(400):
        run.go(note=note if number == 360 else None, step=0.2 * (number >= 360))
    assert run.meter.take(is_last=True)[1] == []


def test_consecutive_spans_have_separate_causes() -> None:
    run, stalls = MeasuredRun(), []
    for number in range(600):
        run.go(data=0.1 * (300 <= number < 340), **{'hook:Slow': 0.3 * (340 <= number < 500)})
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    stalls += run.meter.take(is_last=True)[1]
    assert [(one['iter'], one['iterations'], one['cause']) for one in stalls] == [
        (301, 40, 'waiting for data'),
        (341, 160, 'Slow'),
    ]


def test_open_span_is_counted_once_in_the_summary() -> None:
    run = MeasuredRun()
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


def test_span_that_no_phase_explains_has_category_pace() -> None:
    """Each phase is slow in only a third of the iterations."""
    run, stalls = MeasuredRun(), []
    for number in range(600):
        late = ('step', 'hook:Slow', 'clip')[number % 3]
        run.go(**{late: 0.2 * (300 <= number < 400)})
        if number % 50 == 49:
            stalls += run.meter.take()[1]
    (span,) = stalls + run.meter.take(is_last=True)[1]
    assert (span['iter'], span['iterations'], span['cause']) == (301, 100, 'slower pace')
    assert span['category'] == 'pace'
    assert span['lost'] == pytest.approx(100 * 0.2, rel=0.05)


def test_change_is_compared_with_the_last_level() -> None:
    """Not with an earlier level, although that lasted longer."""
    run, changes = MeasuredRun(), []
    for number in range(500):
        run.go(step=0.0 if 300 <= number < 340 else 0.2)
        if number % 50 == 49:
            run.meter.take()
            changes += run.meter.take_changes()
    faster, slower = changes
    assert (faster['iter'], slower['iter']) == (301, 341)
    assert slower['cause'] == 'step'
