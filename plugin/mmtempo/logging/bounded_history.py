"""A log history of constant size."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from mmengine.logging import HistoryBuffer, print_log


class BoundedHistory(HistoryBuffer):
    """A `HistoryBuffer` that keeps the last values and running totals.

    A statistic over the whole training is computed from the totals. A statistic over a window that
    is longer than what is kept is computed from what is kept, with a warning.
    A copy, as for a checkpoint, is a plain `HistoryBuffer` that stock reads. While values are
    being copied from the device, the copy waits for them when it is read, copied or pickled.

    Args:
        length: Number of values to keep.
        past: A history to start from. Defaults to None.
    """

    def __init__(self, length: int, past: HistoryBuffer | None = None) -> None:
        # HistoryBuffer.__init__ would create arrays; here they are created when they are read.
        self._set_default_statistics()
        self.max_length = length
        self._values: deque[float] = deque(maxlen=length)
        self._counts: deque[int] = deque(maxlen=length)
        self.total = 0  # values of the whole training
        self._sum, self._count = 0.0, 0
        self._min, self._max = float('inf'), float('-inf')
        # For values that are on the device: `fetch` copies them here, `defer` queues a value after
        # them, `copied` returns a copy that waits for them itself.
        self.fetch: Callable[[], None] | None = None
        self.defer: Callable[[float, int], None] | None = None
        self.copied: Callable[[BoundedHistory], HistoryBuffer] | None = None
        if past is not None and len(past.data[0]):
            logs, counts = past.data
            self._values.extend(logs[-length:].tolist())
            self._counts.extend(counts[-length:].tolist())
            self.totals = [len(logs), logs.sum(), counts.sum(), logs.min(), logs.max()]

    def update(self, log_val: int | float, count: int = 1) -> None:
        """Add a value after those that are still on the device."""
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
        """Add values to what is kept and to the totals."""
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
            self._min = self._max = subtotal  # NaN propagates, as in numpy

    def frozen(self) -> BoundedHistory:
        """Return an independent copy of the present content."""
        copied = BoundedHistory(self.max_length)
        copied._values.extend(self._values)
        copied._counts.extend(self._counts)
        copied.totals = self.totals
        return copied

    @property
    def totals(self) -> list:
        """Number, sum, count, minimum and maximum of all values, as plain numbers."""
        return [self.total, self._sum, self._count, self._min, self._max]

    @totals.setter
    def totals(self, totals: list) -> None:
        total, self._sum, count, self._min, self._max = map(float, totals)
        self.total, self._count = int(total), int(count)

    # Methods of HistoryBuffer and registered statistics read these two attributes.
    @property
    def _log_history(self) -> np.ndarray:
        if self.fetch is not None:
            self.fetch()
        return np.array(self._values)

    @property
    def _count_history(self) -> np.ndarray:
        if self.fetch is not None:
            self.fetch()
        return np.array(self._counts)

    def statistics(self, method_name: str, *arg: Any, **kwargs: Any) -> Any:
        """Compute a statistic by name, as `custom_cfg` of a log processor does."""
        if method_name in ('mean', 'min', 'max', 'current'):
            return getattr(self, method_name)(*arg, **kwargs)
        return super().statistics(method_name, *arg, **kwargs)

    def current(self) -> Any:
        """Return the last value."""
        if self.fetch is not None:
            self.fetch()
        if not self._values:
            raise ValueError('no value has been logged yet; call update first')
        return self._values[-1]

    def mean(self, window_size: int | None = None) -> Any:
        """Return the mean of a window; of the whole training by default."""
        return self._whole(window_size, lambda: self._sum / self._count, super().mean)

    def min(self, window_size: int | None = None) -> Any:
        """Return the minimum of a window; of the whole training by default."""
        return self._whole(window_size, lambda: self._min, super().min)

    def max(self, window_size: int | None = None) -> Any:
        """Return the maximum of a window; of the whole training by default."""
        return self._whole(window_size, lambda: self._max, super().max)

    def _whole(self, window_size: int | None, running: Callable, kept: Callable) -> Any:
        """Return the running statistic for the whole training, else the one over what is kept."""
        if self.fetch is not None:
            self.fetch()
        if self.total and (window_size is None or window_size >= self.total):
            return np.float64(running())
        if window_size is not None and window_size > len(self._values):
            _warn_once(window_size, len(self._values))
        return kept(window_size)

    def plain(self) -> HistoryBuffer:
        """Return a copy as a plain `HistoryBuffer`."""
        return HistoryBuffer(*self.data)

    def __deepcopy__(self, memo: dict) -> HistoryBuffer:
        return self.plain() if self.copied is None else self.copied(self)

    def __reduce__(self) -> tuple:
        return HistoryBuffer, self.data


@cache
def _warn_once(wanted: int, kept: int) -> None:
    print_log(
        f'log history: a statistic over {wanted} values uses the {kept} that are kept; set '
        f'default_hooks.runtime_info.history_length={wanted} to keep more',
        logger='current',
        level=logging.WARNING,
    )
