"""Evaluations on a fixed subset of the samples, between evaluations on all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.dataset import DefaultSampler
from mmengine.dist import broadcast_object_list
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, LoggerHook, ParamSchedulerHook
from mmengine.runner import BaseLoop
from torch.utils.data import BatchSampler, SequentialSampler

from mmtempo.loaders import PrefetchDataLoader
from mmtempo.monitor.hook_calls import hooks_at
from mmtempo.utils.checks import is_whole
from mmtempo.utils.units import ordinal

PREFIX = 'subset/'
# Hooks that decide by a score (best weights, early stop, drop of the learning rate): the score
# of a subset is not comparable with that of all samples.
JUDGES = (CheckpointHook, EarlyStoppingHook, ParamSchedulerHook)


class SubsetSampler(DefaultSampler):
    """A sampler of given samples, split among processes as mmengine's sampler splits all.

    Args:
        indices: Indices of the samples.
        round_up: Whether to repeat samples so that all processes get the same number.
            Defaults to True.
    """

    def __init__(self, indices: Sequence[int], round_up: bool = True) -> None:
        super().__init__(indices, shuffle=False, seed=0, round_up=round_up)

    def __iter__(self) -> Iterator[int]:
        return (self.dataset[position] for position in super().__iter__())


class EvaluationSubset:
    """The choice of evaluations that use a subset, and of the samples of that subset.

    ::

        evaluation      1        2        3        4       5     ...   the last
        full_interval=4 subset   subset   subset   full    subset      full

    Both are functions of the iteration and the seed, so that a checkpoint needs no state of it.

    Args:
        runner: The runner of the training.
        loader: The dataloader of the evaluation.
        samples: Size of the subset, as a number of samples (int) or a share of all (float).
        full_interval: Interval, in evaluations, of the evaluations on all samples; None: only
            the last one is.
    """

    def __init__(
        self, runner: Any, loader: Any, samples: int | float, full_interval: int | None
    ) -> None:
        _check_loader(loader)
        self._loader, self._full_interval = loader, full_interval
        total = len(loader.dataset)
        share = isinstance(samples, float)
        self.size = min(total, max(1, round(samples * total)) if share else int(samples))
        self._indices: list[int] = []
        full = f'every {ordinal(full_interval)} and the last' if full_interval else 'the last one'
        if self.size < total:
            runner.logger.info(
                f'val_cfg.subset: evaluations use {self.size} of {total} samples, {full} all; '
                f'metrics of the subset are logged as {PREFIX}<name>'
            )
        else:
            runner.logger.warning(
                f'val_cfg.subset={samples} has no effect: val_dataloader has {total} samples; '
                'set a smaller number, or remove it'
            )

    def is_full(self, runner: Any) -> bool:
        """Return whether the evaluation that is due now uses all samples."""
        loop = runner._train_loop  # the property would build the loop in a run without training
        if not isinstance(loop, BaseLoop) or self.size == len(self._loader.dataset):
            return True
        by_epoch = hasattr(loop, 'run_epoch')
        done, last = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
        if done >= last or self._full_interval is None:
            return done >= last
        return evaluations_until(done, loop) % self._full_interval == 0

    def indices(self, runner: Any) -> list[int]:
        """Return the sorted indices of the subset.

        They are drawn at the first evaluation, when a resumed run has its seed, and only once.
        """
        if not self._indices:
            seed = [runner.seed]
            broadcast_object_list(seed)  # with `diff_rank_seed` processes have different seeds
            generator = torch.Generator().manual_seed(seed[0])
            drawn = torch.randperm(len(self._loader.dataset), generator=generator)
            self._indices = sorted(drawn[: self.size].tolist())
        return self._indices

    @contextlib.contextmanager
    def limit_loader(self, runner: Any) -> Iterator[None]:
        """Have the dataloader yield the subset only, within this context.

        Its workers need no restart: the sampler runs in the main process.
        """
        loader = self._loader
        whole = loader.sampler, loader.batch_sampler
        sampler = SubsetSampler(self.indices(runner), getattr(whole[0], 'round_up', True))
        loader.sampler = sampler
        loader.batch_sampler = BatchSampler(sampler, whole[1].batch_size, whole[1].drop_last)
        try:
            yield
        finally:
            loader.sampler, loader.batch_sampler = whole


def check_subset(subset: Any, full_interval: Any) -> None:
    """Raise ValueError for bad options; needs nothing that is built."""
    is_share = isinstance(subset, float) and 0 < subset < 1
    if subset is not None and not is_share and not is_whole(subset):
        raise ValueError(
            'val_cfg.subset must be a number of samples (500), or a share of them between 0 and 1 '
            f'(0.1), found {subset!r}'
        )
    if full_interval is None:
        return
    if not is_whole(full_interval):
        raise ValueError(
            'val_cfg.full_interval must be a whole number of at least 1, the interval of '
            f'evaluations on all samples, found {full_interval!r}'
        )
    if subset is None:
        raise ValueError(
            f'val_cfg.full_interval={full_interval} needs val_cfg.subset, the number of samples of '
            'the other evaluations, found None; set it, or remove full_interval'
        )


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, PrefetchDataLoader):
        raise ValueError(
            'val_cfg.subset needs val_dataloader as a dict, found a '
            f'{type(loader).__name__} that is built already'
        )
    for key, part, supported in (
        ('sampler', loader.sampler, (DefaultSampler, SequentialSampler)),
        ('batch_sampler', loader.batch_sampler, (BatchSampler,)),
    ):
        if type(part) not in supported:  # any other sampler may leave samples out on purpose
            raise ValueError(
                f'val_cfg.subset needs val_dataloader.{key} to be a {supported[0].__name__}, found '
                f'a {type(part).__name__}; change it, or remove val_cfg.subset'
            )


def evaluations_until(done: int, loop: Any) -> int:
    """Return the number of evaluations of a training so far, with the one that is due now.

    Args:
        done: Number of iterations, or of epochs where the loop counts epochs.
        loop: The training loop.
    """
    count = 0
    spans = list(zip(loop.dynamic_milestones, loop.dynamic_intervals))
    for (start, interval), (end, _) in zip(spans, [*spans[1:], (done + 2, 0)]):
        # Stock changes to an interval one iteration (epoch) before its milestone.
        first, last = max(start - 1, loop.val_begin, 1), min(end - 2, done)
        if first <= last:
            count += last // interval - (first - 1) // interval
    return count


def call_after_val_epoch(runner: Any, metrics: dict, is_full: bool) -> dict:
    """Call `after_val_epoch` of the hooks, and return the metrics as they are logged.

    The logger writes the last value of every metric that exists. Metrics of the other kind of
    evaluation are outdated, so they are hidden from it.

    Args:
        runner: The runner of the training.
        metrics: Results of the evaluation.
        is_full: Whether the evaluation used all samples.
    """
    others = {f'val/{PREFIX}{name}' for name in metrics}
    if not is_full:
        others = {f'val/{name}' for name in metrics}
        metrics = {f'{PREFIX}{name}': value for name, value in metrics.items()}
    for hook in hooks_at(runner, 'after_val_epoch', dict(metrics=metrics)):
        if not is_full and isinstance(hook, JUDGES):
            continue
        hide = others if isinstance(hook, LoggerHook) else set()
        hub = runner.message_hub
        with _hidden(hub.log_scalars, hide), _hidden(hub.runtime_info, hide):
            hook.after_val_epoch(runner, metrics=metrics)
    return metrics


@contextlib.contextmanager
def _hidden(values: dict[str, Any], keys: set[str]) -> Iterator[None]:
    """Remove keys from a dict, within this context."""
    removed = {key: values.pop(key) for key in list(values) if key in keys}
    try:
        yield
    finally:
        values.update(removed)
