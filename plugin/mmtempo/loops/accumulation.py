"""Iterations of several batches that make one update, for gradient accumulation.

::

    count='iterations'   batch | batch | batch, step | batch | batch | batch, step
    iteration              1       2         3           4       5         6

    count='updates'      batch, batch, batch, step   | batch, batch, batch, step
    iteration                        1               |             2

With `count='updates'` everything that counts iterations counts updates: schedules, weight
averages, the log, checkpoints and evaluations. No hook needs to know about accumulation.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from mmengine.optim import OptimWrapper

from mmtempo.loaders import PrefetchDataLoader
from mmtempo.utils.checks import is_whole

COUNTS = ('iterations', 'updates')
INSTEAD = "or use train_cfg.count='iterations'"


def batches_per_iteration(runner: Any, count: str) -> int:
    """Return the number of batches of an iteration, from `train_cfg.count` and the wrapper."""
    if count not in COUNTS:
        raise ValueError(f"train_cfg.count must be 'iterations' or 'updates', found {count!r}")
    if count == 'iterations':
        return 1
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapper):
        return getattr(wrapper, '_accumulative_counts', 1)
    counts = wrapper.get('accumulative_counts', 1)
    if not is_whole(counts):
        raise ValueError(
            'optim_wrapper.accumulative_counts must be a whole number of at least 1, '
            f'found {counts!r}'
        )
    return counts


def count_iterations(loader: Any, batches: int) -> None:
    """Have the length of a dataloader count iterations of `batches` batches each.

    The log, schedules by epoch and hooks that look for the end of an epoch take the length of
    the dataloader as the iterations of an epoch.
    """
    if isinstance(loader, PrefetchDataLoader):
        loader.batches_per_iteration = batches
    elif batches > 1:
        raise ValueError(
            "train_cfg.count='updates' needs train_dataloader as a dict, found a "
            f'{type(loader).__name__} that is built already; change it, {INSTEAD}'
        )


def check_wrapper(wrapper: Any, count: str, batches: int) -> None:
    """Raise ValueError if the optimizer wrapper cannot take announced batches.

    Call it when the training starts: only then is the wrapper built.
    """
    if count == 'iterations':
        return
    if hasattr(wrapper, 'optim_wrappers'):
        raise ValueError(
            "train_cfg.count='updates' supports one optimizer, found an optim_wrapper with "
            f'{", ".join(wrapper.optim_wrappers)}, which are updated independently; use '
            "train_cfg.count='iterations'"
        )
    if batches > 1 and not hasattr(wrapper, 'begin_update'):
        raise ValueError(
            "train_cfg.count='updates' needs optim_wrapper.type='SparseOptimWrapper' or "
            f"'SparseAmpOptimWrapper', found {type(wrapper).__name__!r}; change it, {INSTEAD}"
        )


class LogMeans:
    """Means of the values that several steps returned for the log, kept on their device.

    A mean is over all samples of the steps that returned the value. Of values that are not
    numbers, the last one is kept.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._samples: dict[str, int] = {}

    def add(self, values: dict[str, Any] | None, samples: int) -> None:
        """Add the values of one batch.

        Args:
            values: Values by name, as the step returned them.
            samples: Number of samples of the batch.
        """
        for key, value in (values or {}).items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                # Detached, so that no graph stays alive; half precision would round the sum.
                value = value.detach()
                value = value if value.dtype == torch.float64 else value.float()
            elif not isinstance(value, Number):
                self._totals[key], self._samples[key] = value, 0
                continue
            previous = self._samples.get(key, 0)
            total = value * samples
            self._totals[key] = self._totals[key] + total if previous else total
            self._samples[key] = previous + samples

    def take(self) -> dict[str, Any]:
        """Return the means by name, in the order in which the names first came."""
        return {
            key: total / self._samples[key] if self._samples[key] else total
            for key, total in self._totals.items()
        }
