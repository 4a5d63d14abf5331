"""Items come in order, a few ahead, and with them the end or the error; nothing is left behind."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Iterator

import pytest

from mmtempo.loaders.background_iterator import BackgroundIterator


class Counting:
    """Counts what is taken of it; can be held up, and fails at the end."""

    def __init__(self, error: type[BaseException] = StopIteration) -> None:
        self.taken = 0
        self.moved = threading.Semaphore(0)
        self.goes = threading.Event()
        self.goes.set()
        self._error = error

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.moved.release()
        self.goes.wait()
        if self.taken == 5:
            raise self._error('over')
        self.taken += 1
        return self.taken


def test_in_order_to_the_end() -> None:
    background = BackgroundIterator(Counting)
    assert [background.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(2):
        with pytest.raises(StopIteration):
            background.take()
        assert background.ready()
    assert background.close()


def test_only_so_far_ahead() -> None:
    counting = Counting()
    background = BackgroundIterator(lambda: counting, depth=2)
    for _ in range(2):
        counting.moved.acquire()
    assert not counting.moved.acquire(timeout=0.05)
    background.take()
    counting.moved.acquire()
    assert counting.taken <= 3
    background.close()


def test_an_error_comes_behind_the_items_and_once() -> None:
    background = BackgroundIterator(lambda: Counting(ZeroDivisionError))
    assert [background.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(ZeroDivisionError, match='over'):
        background.take()
    with pytest.raises(StopIteration):
        background.take()


def test_an_iterator_that_cannot_be_made() -> None:
    background = BackgroundIterator(lambda: iter(1))  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        background.take()


def test_waiting_can_end() -> None:
    counting = Counting()
    counting.goes.clear()
    background = BackgroundIterator(lambda: counting)
    assert not background.ready()
    with pytest.raises(queue.Empty):
        background.take(timeout=0.01)
    assert not background.close(timeout=0.01)  # it is held up
    counting.goes.set()
    assert background.close(timeout=60)


@pytest.mark.parametrize('error', [StopIteration, ZeroDivisionError])
def test_the_iterator_goes_when_it_has_ended(error: type[BaseException]) -> None:
    """Its worker processes go with it: not when the garbage collector comes by."""
    gone: list[weakref.ref] = []

    def make() -> Iterator[int]:
        counting = Counting(error)
        gone.append(weakref.ref(counting))
        return counting

    gc.disable()
    try:
        background = BackgroundIterator(make)
        taken = [background.take() for _ in range(5)]
        with pytest.raises(error) as found:
            background.take()
        background.close()
        assert gone[0]() is None
        assert (len(taken), found.type) == (5, error)
    finally:
        gc.enable()
