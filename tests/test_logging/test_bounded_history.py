"""Statistics of a bounded history equal those of mmengine."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
from mmengine.logging import HistoryBuffer

from mmtempo.logging import bounded_history
from mmtempo.logging.bounded_history import BoundedHistory


def both(length: int, values: int) -> tuple[BoundedHistory, HistoryBuffer]:
    drawn = random.Random(0)
    mine, stock = BoundedHistory(length), HistoryBuffer()
    for _ in range(values):
        value, count = drawn.uniform(-5, 5), drawn.randint(1, 3)
        mine.update(value, count)
        stock.update(value, count)
    return mine, stock


@pytest.mark.parametrize('values', [1, 7, 20, 500])
@pytest.mark.parametrize('method', ['mean', 'min', 'max'])
@pytest.mark.parametrize('window', [1, 5, 20, 501, 10**6, None])
def test_statistics_equal_stock(values: int, method: str, window: int | None) -> None:
    mine, stock = both(20, values)
    expected = stock.statistics(method, window_size=window)
    assert mine.statistics(method, window_size=window) == pytest.approx(expected, rel=1e-12)
    assert getattr(mine, method)(window) == pytest.approx(expected, rel=1e-12)
    assert mine.current() == mine.statistics('current') == stock.current()
    assert isinstance(mine.statistics(method, window_size=window), float)


def test_a_window_longer_than_what_is_kept_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(bounded_history, 'print_log', lambda text, **options: said.append(text))
    mine, stock = both(20, 500)
    for _ in range(3):
        assert mine.mean(77) == pytest.approx(stock.mean(20))
    assert len(said) == 1
    assert 'history_length=77' in said[0]


def test_length_is_bounded() -> None:
    mine, stock = both(20, 500)
    for kept, whole in zip(mine.data, stock.data):
        assert kept.tolist() == whole[-20:].tolist()
    assert mine.total == 500


def test_copies_are_plain_and_can_be_continued() -> None:
    mine, stock = both(20, 500)
    for made in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert type(made) is HistoryBuffer
        assert made.data[0].tolist() == stock.data[0][-20:].tolist()
        made.update(1.0)
    again = BoundedHistory(20, copy.deepcopy(mine))
    again.totals = mine.totals
    assert again.mean() == mine.mean()
    taken = BoundedHistory(20, stock)
    assert taken.mean() == pytest.approx(stock.mean())
    assert (taken.min(), taken.max(), taken.total) == (stock.min(), stock.max(), 500)
    assert BoundedHistory(20, HistoryBuffer()).total == 0


def test_frozen_copies_do_not_change() -> None:
    mine, _ = both(20, 30)
    frozen, before = mine.frozen(), mine.totals
    mine.update(1e9)
    assert frozen.totals == before
    assert frozen.max(5) < 1e9


def test_a_registered_statistic_sees_what_is_kept() -> None:
    mine, stock = both(20, 500)
    name = 'for_test_of_bounded_history'

    def middle(self: HistoryBuffer, window_size: int) -> float:
        return float(np.median(self._log_history[-window_size:]))

    HistoryBuffer._statistics_methods[name] = middle
    try:
        assert mine.statistics(name, window_size=9) == stock.statistics(name, window_size=9)
    finally:
        del HistoryBuffer._statistics_methods[name]
    with pytest.raises(KeyError):
        mine.statistics('unheard of')


def test_nan_propagates_into_totals() -> None:
    mine, stock = both(5, 3)
    for history in (mine, stock):
        history.update(float('nan'))
        for _ in range(9):
            history.update(1.0)
    for method in ('mean', 'min', 'max'):
        assert np.isnan(mine.statistics(method, window_size=99)) == np.isnan(
            stock.statistics(method, window_size=99)
        )
        assert mine.statistics(method, window_size=2) == 1.0


def test_wrong_types_are_refused_as_by_stock() -> None:
    for history in (BoundedHistory(3), HistoryBuffer()):
        with pytest.raises(TypeError):
            history.update('1')
    with pytest.raises(ValueError, match='no value'):
        BoundedHistory(3).current()
