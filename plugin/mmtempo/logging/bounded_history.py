"""A log history whose size does not depend on how long the training has run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from mmengine.logging import HistoryBuffer, print_log


class BoundedHistory(HistoryBuffer):
    """Stands in for a HistoryBuffer in the message hub: the last values, and running totals.

    What asks for all there has been gets the running mean, minimum or maximum of the whole
    training; what asks for less, but more than is kept, gets that of what is kept. Copied, as
    for a checkpoint, it becomes a plain HistoryBuffer that stock reads; while values are on their
    way from the device, the copy takes them in when it is read, or copied or pickled itself.

    Args:
        length: How many values to keep.
        past: A history to take over. Defaults to None.
    """

    def __init__(self, length: int, past: HistoryBuffer | None = None) -> None:
        # Not HistoryBuffer's own: its arrays are made here when somebody asks for them.
        self._set_default_statistics()
        self._values: deque[float] = deque(maxlen=length)
        self._counts: deque[int] = deque(maxlen=length)
        self.total = 0  # how many values there have been
        self._sum, self._count = 0.0, 0
        self._min, self._max = float('inf'), float('-inf')
        # Where values still lie on the device: `fetch` brings them, `defer` queues one more,
        # `copied` returns a copy that fetches them itself.
        self.fetch: Callable[[], None] | None = None
        self.defer: Callable[[float, int], None] | None = None
        self.copied: Callable[[BoundedHistory], HistoryBuffer] | None = None
        if past is not None and len(past.data[0]):
            logs, counts = past.data
            self._values.extend(logs[-length:].tolist())
            self._counts.extend(counts[-length:].tolist())
            self.totals = [len(logs), logs.sum(), counts.sum(), logs.min(), logs.max()]

    @property
    def max_length(self) -> int:
        return self._values.maxlen or 0

    def update(self, log_val: int | float, count: int = 1) -> None:
        """Add a value, behind those that are still on the device."""
        for name, value in (('log_val', log_val), ('count', count)):
            if not isinstance(value, (int, float)):
                raise TypeError(f'{name} must be int or float but got {type(value)}')
        if self.defer is not None:
            self.defer(log_val, count)
            return
        if self.fetch is not None:
            self.fetch()
        self.extend((log_val,), (count,))

    def extend(self, values: Sequence[int | float], counts: Sequence[int]) -> None:
        """Add values now."""
        if not values:
            return
        self._values.extend(values)
        self._counts.extend(counts)
        self.total += len(values)
        subtotal = sum(values)
        self._sum += subtotal
        self._count += sum(counts)
        self._min = min(self._min, *values)
        self._max = max(self._max, *values)
        if subtotal != subtotal and any(value != value for value in values):
            self._min = self._max = subtotal  # nan stays, as in numpy

    def frozen(self) -> BoundedHistory:
        """What it holds now, for good."""
        copied = BoundedHistory(self.max_length)
        copied._values.extend(self._values)
        copied._counts.extend(self._counts)
        copied.totals = self.totals
        return copied

    @property
    def totals(self) -> list:
        """What cannot be told from the values that are kept; plain numbers for a checkpoint."""
        return [self.total, self._sum, self._count, self._min, self._max]

    @totals.setter
    def totals(self, totals: list) -> None:
        total, self._sum, count, self._min, self._max = map(float, totals)
        self.total, self._count = int(total), int(count)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        if self.fetch is not None:
            self.fetch()
        return np.array(self._values), np.array(self._counts)

    # HistoryBuffer's own methods and statistics that people register read these two.
    @property
    def _log_history(self) -> np.ndarray:
        return self._arrays()[0]

    @property
    def _count_history(self) -> np.ndarray:
        return self._arrays()[1]

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """The values that are kept, and their counts."""
        return self._arrays()

    def statistics(self, method_name: str, *arg: Any, **kwargs: Any) -> Any:
        """A statistic by name, as in `custom_cfg`."""
        if method_name in ('mean', 'min', 'max', 'current'):
            return getattr(self, method_name)(*arg, **kwargs)
        return super().statistics(method_name, *arg, **kwargs)

    def current(self) -> Any:
        if self.fetch is not None:
            self.fetch()
        if not self._values:
            raise ValueError('no value has been logged yet; call update first')
        return self._values[-1]

    def mean(self, window_size: int | None = None) -> Any:
        return self._whole(window_size, lambda: self._sum / self._count, super().mean)

    def min(self, window_size: int | None = None) -> Any:
        return self._whole(window_size, lambda: self._min, super().min)

    def max(self, window_size: int | None = None) -> Any:
        return self._whole(window_size, lambda: self._max, super().max)

    def _whole(self, window_size: int | None, running: Callable, kept: Callable) -> Any:
        """The running statistic where more is asked for than is kept."""
        if self.fetch is not None:
            self.fetch()
        if self.total and (window_size is None or window_size >= self.total):
            return np.float64(running())
        if window_size is not None and window_size > len(self._values):
            _say_once(window_size, len(self._values))
        return kept(window_size)

    def plain(self) -> HistoryBuffer:
        """Return a copy that stock made."""
        logs, counts = self._arrays()
        return HistoryBuffer(logs, counts)

    def __deepcopy__(self, memo: dict) -> HistoryBuffer:
        return self.plain() if self.copied is None else self.copied(self)

    def __reduce__(self) -> tuple:
        logs, counts = self._arrays()
        return HistoryBuffer, (logs, counts)


@cache
def _say_once(wanted: int, kept: int) -> None:
    print_log(
        f'A statistic over the last {wanted} values of a log history was asked for, and takes the '
        f'{kept} that are kept; default_hooks.runtime_info.history_length={wanted} keeps as many.',
        logger='current',
        level=logging.WARNING,
    )
