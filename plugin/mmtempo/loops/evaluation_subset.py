"""Evaluations over a few samples, always the same ones, between those over all."""

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

PREFIX = 'subset/'
# They decide by a score, which that of a subset is not: which weights are best, when to stop,
# when the learning rate drops.
JUDGES = (CheckpointHook, EarlyStoppingHook, ParamSchedulerHook)


class SubsetSampler(DefaultSampler):
    """Some samples of a data set, spread over the processes as mmengine's sampler spreads all.

    Args:
        indices: Of the samples.
        round_up: Whether all processes get equally many. Defaults to True.
    """

    def __init__(self, indices: Sequence[int], round_up: bool = True) -> None:
        super().__init__(indices, shuffle=False, seed=0, round_up=round_up)

    def __iter__(self) -> Iterator[int]:
        return (self.dataset[place] for place in super().__iter__())


class EvaluationSubset:
    """Which evaluations of a training are over a few samples, and which samples these are.

    ::

        evaluation      1        2        3        4       5     ...   the last
        full_interval=4 subset   subset   subset   full    subset      full

    Both are functions of the iteration and the seed: there is nothing to be kept for a resume.

    Args:
        runner: Of the training.
        loader: Of the evaluation.
        samples: How many samples, or which share of them.
        full_interval: Every so many evaluations one is over all samples; None: the last one.
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
        often = f'one in {full_interval} and the last are' if full_interval else 'the last is'
        if self.size < total:
            runner.logger.info(
                f'Evaluations are over {self.size} of {total} samples (val_cfg.subset), {often} '
                f'over all; metrics of the {self.size} are logged as {PREFIX}<name>'
            )
        else:
            runner.logger.warning(
                f'val_cfg.subset={samples} has no effect: val_dataloader has {total} samples.'
            )

    def is_full(self, runner: Any) -> bool:
        """Whether the evaluation that is due now is over all samples."""
        loop = runner._train_loop  # the property would build it, for one who only evaluates
        if not isinstance(loop, BaseLoop) or self.size == len(self._loader.dataset):
            return True
        by_epoch = hasattr(loop, 'run_epoch')
        done, last = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
        if done >= last or self._full_interval is None:
            return done >= last
        return evaluations_until(done, loop) % self._full_interval == 0

    def indices(self, runner: Any) -> list[int]:
        """The samples, in the order of the data set; drawn once, when a resume has its seed."""
        if not self._indices:
            seed = [runner.seed]
            broadcast_object_list(seed)  # each process may have one of its own
            generator = torch.Generator().manual_seed(seed[0])
            drawn = torch.randperm(len(self._loader.dataset), generator=generator)
            self._indices = sorted(drawn[: self.size].tolist())
        return self._indices

    @contextlib.contextmanager
    def given(self, runner: Any) -> Iterator[None]:
        """Have the loader give these samples only; its workers know no samplers."""
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
    """Before anything is built."""
    share = isinstance(subset, float) and 0 < subset < 1
    number = isinstance(subset, int) and not isinstance(subset, bool) and subset > 0
    if subset is not None and not share and not number:
        raise ValueError(
            'val_cfg.subset must be a number of samples (500), or a share of them between 0 and 1 '
            f'(0.1), found {subset!r}'
        )
    if full_interval is None:
        return
    if isinstance(full_interval, bool) or not isinstance(full_interval, int) or full_interval < 1:
        raise ValueError(
            'val_cfg.full_interval must be a whole number of at least 1: every so many evaluations '
            f'one is over all samples; found {full_interval!r}'
        )
    if subset is None:
        raise ValueError(
            f'val_cfg.full_interval={full_interval} needs val_cfg.subset, the number of samples of '
            'the evaluations in between'
        )


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, PrefetchDataLoader):
        raise ValueError(
            'val_cfg.subset needs val_dataloader as a dict, found a '
            f'{type(loader).__name__} that is built already'
        )
    for key, part, known in (
        ('sampler', loader.sampler, (DefaultSampler, SequentialSampler)),
        ('batch_sampler', loader.batch_sampler, (BatchSampler,)),
    ):
        if type(part) not in known:  # nobody knows which samples another one would leave out
            raise ValueError(
                f'val_cfg.subset needs val_dataloader.{key} to be a {known[0].__name__}, found a '
                f'{type(part).__name__}; change it, or leave val_cfg.subset out'
            )


def evaluations_until(done: int, loop: Any) -> int:
    """How many evaluations a training has had, the one that is due now included.

    Args:
        done: Iterations, or epochs where the loop counts these.
        loop: Of the training.
    """
    count = 0
    spans = list(zip(loop.dynamic_milestones, loop.dynamic_intervals))
    for (start, interval), (end, _) in zip(spans, [*spans[1:], (done + 2, 0)]):
        # Stock changes to an interval one before its milestone.
        first, last = max(start - 1, loop.val_begin, 1), min(end - 2, done)
        if first <= last:
            count += last // interval - (first - 1) // interval
    return count


def tell_hooks(runner: Any, metrics: dict, is_full: bool) -> dict:
    """Call `after_val_epoch`; returns the metrics as they are logged.

    The log has the last value of each metric there is: those of the other kind of evaluation
    are old, and hidden from it.

    Args:
        runner: Of the training.
        metrics: Results of the evaluation.
        is_full: Whether they are over all samples.
    """
    others = {f'val/{PREFIX}{name}' for name in metrics}
    if not is_full:
        others = {f'val/{name}' for name in metrics}
        metrics = {f'{PREFIX}{name}': value for name, value in metrics.items()}
    for hook in list(runner.hooks):
        if not is_full and isinstance(hook, JUDGES):
            continue
        hide = others if isinstance(hook, LoggerHook) else set()
        hub = runner.message_hub
        with _hidden(hub.log_scalars, hide), _hidden(hub.runtime_info, hide):
            hook.after_val_epoch(runner, metrics=metrics)
    return metrics


@contextlib.contextmanager
def _hidden(values: dict[str, Any], keys: set[str]) -> Iterator[None]:
    apart = {key: values.pop(key) for key in list(values) if key in keys}
    try:
        yield
    finally:
        values.update(apart)
