"""Items arrive in order, a few ahead, followed by the end or the error."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Iterator

import pytest

from mmtempo.loaders.background_iterator import BackgroundIterator, NotReady


class Counting:
    """An iterator that counts its items, can be blocked, and raises an error after five."""

    def __init__(self, error: type[BaseException] = StopIteration) -> None:
        self.taken = 0
        self.advanced = threading.Semaphore(0)
        self.unblocked = threading.Event()
        self.unblocked.set()
        self._error = error

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.advanced.release()
        self.unblocked.wait()
        if self.taken == 5:
            raise self._error('over')
        self.taken += 1
        return self.taken


def test_items_arrive_in_order_until_the_end() -> None:
    background = BackgroundIterator(Counting)
    assert [background.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    for _ in range(2):
        with pytest.raises(StopIteration):
            background.take()
        assert background.ready()
    assert background.close()


def test_thread_is_limited_to_depth_items_ahead() -> None:
    counting = Counting()
    background = BackgroundIterator(lambda: counting, depth=2)
    for _ in range(2):
        counting.advanced.acquire()
    assert not counting.advanced.acquire(timeout=0.05)
    background.take()
    counting.advanced.acquire()
    assert counting.taken <= 3
    background.close()


@pytest.mark.parametrize('error', [ZeroDivisionError, queue.Empty])
def test_error_is_raised_once_after_the_items(error: type[Exception]) -> None:
    background = BackgroundIterator(lambda: Counting(error))
    assert [background.take() for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(error, match='over'):
        background.take()
    with pytest.raises(StopIteration):
        background.take()


def test_error_while_making_the_iterator_is_raised() -> None:
    background = BackgroundIterator(lambda: iter(1))  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        background.take()


def test_take_and_close_time_out() -> None:
    counting = Counting()
    counting.unblocked.clear()
    background = BackgroundIterator(lambda: counting)
    assert not background.ready()
    with pytest.raises(NotReady):
        background.take(timeout=0.01)
    assert not background.close(timeout=0.01)  # the thread is blocked
    counting.unblocked.set()
    assert background.close(timeout=60)


@pytest.mark.parametrize('error', [StopIteration, ZeroDivisionError])
def test_iterator_is_released_when_it_has_ended(error: type[BaseException]) -> None:
    """Its worker processes must end with it, without a run of the garbage collector."""
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
