"""Stalls are found, noise is no stall, and a new level is reported once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmtempo.timing.level_shift import LevelChange
from mmtempo.timing.stall_detector import StallDetector


def noisy(count: int, usual: float = 0.14, sigma: float = 0.05, seed: int = 0) -> np.ndarray:
    return usual * np.exp(np.random.default_rng(seed).normal(0, sigma, count))


class Outcome:
    """Stalls, changes and slow spans of a whole stream.

    Attributes:
        order: Iterations that were slow, in the order in which they were found.
        usual: Usual seconds of each of them.
        delay: Largest number of iterations until one of them was found.
    """

    def __init__(
        self,
        seconds: np.ndarray,
        kinds: np.ndarray | None = None,
        cuts: list[int] | None = None,
    ) -> None:
        self.changes: list[LevelChange] = []
        self.detector = StallDetector(on_change=self._changed)
        kinds = np.zeros(len(seconds), np.int8) if kinds is None else kinds
        edges = [0, *(range(50, len(seconds), 50) if cuts is None else cuts), len(seconds)]
        self.delay, found = 0, []
        for start, stop in itertools.pairwise(edges):
            stalls = self.detector.look(seconds[start:stop], kinds[start:stop])
            found += stalls
            self.delay = max([self.delay, *(stop - 1 - one.iteration for one in stalls)])
        found += self.detector.flush()
        self.order, self.usual = [one.iteration for one in found], dict(found)
        assert len(self.usual) == len(found), 'a stall was found twice'
        self.slow = sorted(self.order)
        self.spans = self.detector.take_spans()
        self.lost_alone = sum(float(seconds[one]) - usual for one, usual in found)

    def _changed(self, change: LevelChange) -> bool:
        self.changes.append(change)
        return True

    @property
    def lost(self) -> float:
        return self.lost_alone + sum(span.lost for span in self.spans)


def test_stall_is_found_with_its_usual_time() -> None:
    seconds = noisy(400)
    seconds[300] = 0.5
    outcome = Outcome(seconds)
    assert outcome.slow == [300]
    assert outcome.usual[300] == pytest.approx(0.14, rel=0.03)
    assert not outcome.changes


def test_stalls_are_judged_after_16_iterations() -> None:
    detector = StallDetector()
    detector.look(noisy(100), np.zeros(100, int))
    assert detector.look(np.array([9.0]), np.zeros(1, int)) == []
    assert detector.look(noisy(15, seed=2), np.zeros(15, int)) == []
    (stall,) = detector.look(noisy(1, seed=3), np.zeros(1, int))
    assert stall.iteration == 100


@pytest.mark.parametrize('index', range(20))
def test_stall_among_the_first_20_is_found(index: int) -> None:
    seconds = noisy(60, seed=index)
    seconds[index] = 3.0
    outcome = Outcome(seconds)
    assert outcome.slow == [index]
    assert outcome.usual[index] == pytest.approx(0.14, rel=0.05)


def test_too_few_iterations_are_not_judged_slow() -> None:
    outcome = Outcome(np.array([5.0, *[0.1] * 8]))
    assert not outcome.slow


def test_short_run_is_judged_at_its_end() -> None:
    outcome = Outcome(np.array([5.0, *[0.1] * 12]))
    assert outcome.usual == {0: pytest.approx(0.1)}


@pytest.mark.parametrize('sigma', [0.05, 0.1, 0.15])
@pytest.mark.parametrize('seed', [0, 1])
def test_noise_is_no_stall(sigma: float, seed: int) -> None:
    seconds = noisy(20_000, sigma=sigma, seed=seed)
    tail = np.random.default_rng(seed + 100).random(len(seconds)) < 0.02
    seconds[tail] *= np.exp(np.random.default_rng(seed + 200).normal(0, 1.5 * sigma, tail.sum()))
    outcome = Outcome(seconds)
    assert len(outcome.slow) <= 4
    assert not outcome.changes


@pytest.mark.parametrize(('workers', 'extra'), [(3, 0.28), (4, 0.13), (8, 0.11)])
def test_periodic_stalls_do_not_move_the_baseline(workers: int, extra: float) -> None:
    seconds = noisy(1000)
    seconds[2::workers] += extra
    outcome = Outcome(seconds)
    assert outcome.slow == list(range(2, 1000, workers))
    assert max(outcome.usual.values()) < 0.155
    assert not outcome.changes


def test_excess_below_a_millisecond_is_no_stall() -> None:
    seconds = np.full(200, 0.0005)
    seconds[100], seconds[150] = 0.0014, 0.0016
    assert Outcome(seconds).slow == [150]


def test_excess_below_the_least_share_is_no_stall() -> None:
    seconds = np.full(200, 0.1)
    seconds[100], seconds[150] = 0.124, 0.126
    assert Outcome(seconds).slow == [150]


@pytest.mark.parametrize('factor', [0.4, 0.6, 1.7, 4.0])
@pytest.mark.parametrize('start', [12, 24, 500])
def test_new_level_is_reported_once(factor: float, start: int) -> None:
    seconds = noisy(900, seed=start)
    seconds[start:] *= factor
    seconds[start + 60] = 2.0
    outcome = Outcome(seconds)
    assert [change.iteration for change in outcome.changes] == [start]
    change = outcome.changes[0]
    assert change.old == pytest.approx(0.14, rel=0.08)
    assert change.new == pytest.approx(0.14 * factor, rel=0.05)
    assert outcome.usual == {start + 60: pytest.approx(0.14 * factor, rel=0.08)}


@pytest.mark.parametrize('index', [0, 7, 19, 20, 36, 37, 148, 149, 200, 300, 399])
def test_usual_is_the_median_of_129_before_the_latest_16(index: int) -> None:
    seconds = noisy(400)
    seconds[index] = 2.0
    known = seconds[: max(20, index - 16)][-129:]
    assert Outcome(seconds).usual == {index: pytest.approx(np.median(known))}


def test_baseline_is_the_new_level_twelve_iterations_after_a_change() -> None:
    seconds = noisy(400)
    seconds[200:] *= 4
    seconds[212] = 9.0
    assert Outcome(seconds).usual == {212: pytest.approx(0.56, rel=0.08)}


def test_a_fifth_more_is_no_new_level() -> None:
    seconds = np.tile([0.100, 0.1001], 150)
    seconds[100:] *= 1.2
    outcome = Outcome(seconds)
    assert not outcome.changes
    assert not outcome.slow


def test_young_baseline_requires_a_larger_excess() -> None:
    seconds = np.tile([0.095, 0.1, 0.105], 150)
    seconds[102:] *= 2
    seconds[[116, 300]] = 0.35
    outcome = Outcome(seconds)
    assert [change.iteration for change in outcome.changes] == [102]
    assert outcome.slow == [300]


def test_stalls_around_a_level_change_are_found() -> None:
    seconds = noisy(600)
    seconds[300:] *= 2
    seconds[297], seconds[306] = 1.0, 3.0
    outcome = Outcome(seconds)
    assert outcome.slow == [297, 306]
    assert outcome.usual[297] == pytest.approx(0.14, rel=0.05)
    assert outcome.usual[306] == pytest.approx(0.28, rel=0.05)
    assert [change.iteration for change in outcome.changes] == [300]


def test_level_change_there_and_back() -> None:
    seconds = noisy(900)
    seconds[300:600] *= 2
    outcome = Outcome(seconds)
    assert not outcome.slow
    assert [change.iteration for change in outcome.changes] == [300, 600]


@pytest.mark.parametrize('length', [5, 11, 12, 15, 16, 17, 40, 300])
def test_lost_time_does_not_depend_on_classification(length: int) -> None:
    seconds = noisy(900)
    seconds[300 : 300 + length] += 0.3
    outcome = Outcome(seconds)
    assert outcome.lost == pytest.approx(0.3 * length, rel=0.1)
    for span in outcome.spans:
        assert (span.first, span.last, span.is_over) == (300, 299 + length, True)
        assert span.iterations == length
        assert span.usual == pytest.approx(0.14, rel=0.05)
    assert len(outcome.spans) + len(outcome.slow) > 0


def test_permanent_slowdown_lasts_to_the_end() -> None:
    seconds = noisy(900)
    seconds[400:] *= 3
    (span,) = Outcome(seconds).spans
    assert (span.first, span.last, span.iterations, span.is_over) == (400, 899, 500, False)
    assert span.lost == pytest.approx(500 * 0.28, rel=0.03)


def test_stalls_and_level_changes_within_a_span() -> None:
    """The level rises, rises further, falls halfway, and is back; two iterations stall."""
    seconds = noisy(1200)
    seconds[300:500] += 0.2
    seconds[500:700] += 0.4
    seconds[700:900] += 0.1
    seconds[[450, 503]] += 3.0
    outcome = Outcome(seconds)
    assert outcome.slow == [450, 503]
    first, second = outcome.spans
    assert (first.first, first.iterations, first.is_over) == (300, 200, True)
    assert (second.first, second.iterations, second.is_over) == (500, 400, True)
    assert first.lost == pytest.approx(200 * 0.2, rel=0.03)
    assert second.lost == pytest.approx(200 * 0.5, rel=0.03)
    assert outcome.lost == pytest.approx(200 * 0.7 + 6, rel=0.03)


def test_faster_level_is_no_loss_and_slower_one_need_not_be() -> None:
    seconds = noisy(900)
    seconds[300:] /= 2
    assert not Outcome(seconds).spans
    detector = StallDetector(on_change=lambda change: change.iteration != 300)
    seconds = noisy(900)
    seconds[300:600] *= 2
    seconds[450:500] *= 2
    detector.look(seconds, np.zeros(900, np.int8))
    (span,) = detector.take_spans()
    assert (span.first, span.iterations) == (450, 50)
    assert span.usual == pytest.approx(0.28, rel=0.05)


def test_level_that_is_no_loss_is_the_usual_one_at_once() -> None:
    detector = StallDetector(on_change=lambda change: change.iteration != 300)
    seconds = noisy(900)
    seconds[300:340] *= 2
    seconds[340:380] *= 4
    detector.look(seconds, np.zeros(900, np.int8))
    (span,) = detector.take_spans()
    assert (span.first, span.iterations, span.usual) == (340, 40, pytest.approx(0.28, rel=0.05))


@pytest.mark.parametrize('start', [0, 500])
def test_short_fast_level_is_no_reference(start: int) -> None:
    seconds = noisy(3000)
    seconds[start : start + 40] /= 2
    assert not Outcome(seconds).spans


def test_span_ends_when_the_level_falls_gradually() -> None:
    seconds = noisy(3000, sigma=0.005)
    seconds[300:700] *= 1.5
    seconds[700:1700] *= np.linspace(1.5, 1.0, 1000)
    outcome = Outcome(seconds)
    assert all(span.is_over and span.last < 1700 for span in outcome.spans)
    assert 0.14 * 200 < sum(span.lost for span in outcome.spans) < 0.14 * 450


@pytest.mark.parametrize('every', [2, 40, 100])
def test_rare_kinds_are_not_counted_twice(every: int) -> None:
    """Some are judged before their level is known."""
    kinds = (np.arange(250 * every) % every == 0).astype(np.int8)
    seconds = noisy(len(kinds), sigma=0.005)
    slow = np.flatnonzero(kinds)[100:130]
    seconds[slow] += 0.2
    assert Outcome(seconds, kinds).lost == pytest.approx(30 * 0.2, rel=0.05)


def test_burst_is_a_series_of_stalls() -> None:
    seconds = noisy(600)
    seconds[300:310] *= 3
    outcome = Outcome(seconds)
    assert outcome.slow == list(range(300, 310))
    assert not outcome.changes


def test_irregular_slow_iterations_are_no_level() -> None:
    seconds = noisy(600)
    seconds[300:340] *= np.random.default_rng(0).uniform(3, 60, 40)
    outcome = Outcome(seconds)
    assert set(outcome.slow) >= set(range(300, 330))
    assert not outcome.changes


def test_kinds_are_separated() -> None:
    # Four forward passes to an update: the fourth takes twice as long, and is not slow.
    kinds = (np.arange(800) % 4 == 3).astype(np.int8)
    seconds = noisy(800) * np.where(kinds, 2, 1)
    seconds[402] = 0.28  # as long as an update
    seconds[403] = 0.70
    outcome = Outcome(seconds, kinds)
    assert outcome.usual == {
        402: pytest.approx(0.14, rel=0.04),
        403: pytest.approx(0.28, rel=0.04),
    }


def test_rare_kinds_are_judged_within_384_iterations() -> None:
    kinds = (np.arange(4000) % 40 == 39).astype(np.int8)
    seconds = noisy(4000) * np.where(kinds, 2, 1)
    seconds[[1999, 2001]] = 3.0
    outcome = Outcome(seconds, kinds, cuts=list(range(1, 4000)))
    assert outcome.slow == [1999, 2001]
    assert outcome.delay <= 384


streams = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0.05, 0.1, 0.2, 0.9]), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(streams, st.lists(st.integers(1, 1000), max_size=30), st.integers(0, 9))
def test_result_does_not_depend_on_blocks(
    runs: list[tuple[int, float, int]], cuts: list[int], seed: int
) -> None:
    lengths, levels, kinds = zip(*runs)
    seconds = np.repeat(levels, lengths) * noisy(sum(lengths), usual=1.0, seed=seed)
    numbers = np.repeat(kinds, lengths)
    whole = Outcome(seconds, numbers, cuts=[])
    cut = Outcome(seconds, numbers, cuts=sorted({one for one in cuts if one < len(seconds)}))
    assert cut.order == whole.order
    assert cut.slow == whole.slow
    assert cut.usual == whole.usual
    assert cut.changes == whole.changes
    assert cut.spans == whole.spans
    # Stalls and spans together lose less than the total time.
    assert whole.lost < seconds.sum()


def test_memory_does_not_grow() -> None:
    detector = StallDetector()
    for block in range(200):
        seconds = noisy(100, usual=0.1 * (1 + block % 2), seed=block)
        detector.look(seconds, np.arange(100) % 3)
        detector.take_spans()
    for kind in detector._kinds.values():
        assert len(kind._window) <= 129
        assert len(kind._latest) <= 16
        assert len(kind._first) == 0


def test_empty_block() -> None:
    detector = StallDetector()
    assert detector.look(np.array([]), np.array([])) == []
    assert detector.flush() == []


def test_lengths_must_match() -> None:
    with pytest.raises(ValueError, match='seconds and kinds must have one length, found 2 and 1'):
        StallDetector().look(np.array([1.0, 1.0]), np.array([0]))


@pytest.mark.parametrize('kwargs', [dict(factor=0), dict(least=0), dict(window=5)])
def test_arguments_are_checked(kwargs: dict) -> None:
    with pytest.raises(ValueError, match='StallDetector needs'):
        StallDetector(**kwargs)
