"""Iterations of several batches that make one update, for who accumulates gradients.

::

    count='iterations'   batch | batch | batch, step | batch | batch | batch, step
    iteration              1       2         3           4       5         6

    count='updates'      batch, batch, batch, step   | batch, batch, batch, step
    iteration                        1               |             2

Then all that counts iterations counts updates: schedules, averages, the log, checkpoints,
evaluations. No hook has to know of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Number
from typing import Any

import torch
from mmengine.optim import OptimWrapper

from mmtempo.loaders import PrefetchDataLoader

COUNTS = ('iterations', 'updates')
INSTEAD = "or use train_cfg.count='iterations'"


def batches_per_iteration(runner: Any, count: str) -> int:
    """How many batches an iteration has, as `train_cfg.count` and the optimizer wrapper say."""
    if count not in COUNTS:
        raise ValueError(f"train_cfg.count must be 'iterations' or 'updates', found {count!r}")
    if count == 'iterations':
        return 1
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapper):
        return getattr(wrapper, '_accumulative_counts', 1)
    counts = wrapper.get('accumulative_counts', 1)
    if not isinstance(counts, int) or isinstance(counts, bool) or counts < 1:
        raise ValueError(
            'optim_wrapper.accumulative_counts must be a whole number of at least 1, '
            f'found {counts!r}'
        )
    return counts


def counted(loader: Any, batches: int) -> Any:
    """The loader, with its length in iterations of so many batches."""
    if batches == 1:
        return loader
    if not isinstance(loader, PrefetchDataLoader):
        raise ValueError(
            "train_cfg.count='updates' needs train_dataloader as a dict, found a "
            f'{type(loader).__name__} that is built already; change it, {INSTEAD}'
        )
    return UpdateLoader(loader, batches)


def uncounted(loader: Any) -> Any:
    """Return the loader that `counted` was given."""
    return vars(loader)['_loader'] if isinstance(loader, UpdateLoader) else loader


def check_wrapper(wrapper: Any, count: str, batches: int) -> None:
    """Before the training, when it is built: whether it can be told what makes an update."""
    if count == 'iterations':
        return
    if hasattr(wrapper, 'optim_wrappers'):
        raise ValueError(
            "train_cfg.count='updates' is for one optimizer, found optim_wrapper with "
            f'{", ".join(wrapper.optim_wrappers)}, each of which has updates of its own; use '
            "train_cfg.count='iterations'"
        )
    if batches > 1 and not hasattr(wrapper, 'begin_update'):
        raise ValueError(
            "train_cfg.count='updates' needs optim_wrapper.type='SparseOptimWrapper' or "
            f"'SparseAmpOptimWrapper', found {type(wrapper).__name__!r}; change it, {INSTEAD}"
        )


class UpdateLoader:
    """A loader whose length is counted in updates; all else is the loader's own.

    Who asks a loader for its length wants the iterations of an epoch: the log, schedules by
    epoch, hooks that look for its end.

    Args:
        loader: The loader.
        batches: Of an update.
    """

    def __init__(self, loader: Any, batches: int) -> None:
        vars(self).update(_loader=loader, _batches=batches)

    def __len__(self) -> int:
        return -(-len(self._loader) // self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ('_loader', '_batches'):  # not yet, while it is copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)


class LogMeans:
    """Means of what several steps returned for the log, on the device that it is on.

    They are over all samples. What some steps did not return is a mean over the others; what is
    no number is that of the last step.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}
        self._samples: dict[str, int] = {}

    def add(self, values: dict[str, Any] | None, samples: int) -> None:
        """What the step of a batch returned.

        Args:
            values: By name.
            samples: Of the batch.
        """
        for key, value in (values or {}).items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                # A sum in half precision would be another; and no graph is to be kept alive.
                value = value.detach()
                value = value if value.dtype == torch.float64 else value.float()
            elif not isinstance(value, Number):
                self._totals[key], self._samples[key] = value, 0
                continue
            known = self._samples.get(key, 0)
            total = value * samples
            self._totals[key] = self._totals[key] + total if known else total
            self._samples[key] = known + samples

    def take(self) -> dict[str, Any]:
        """By name, in the order in which they came."""
        return {
            key: total / self._samples[key] if self._samples[key] else total
            for key, total in self._totals.items()
        }
