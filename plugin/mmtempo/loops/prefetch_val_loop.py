"""Evaluate with a prefetching dataloader, on all samples or on a subset."""

from __future__ import annotations

import contextlib
from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import ValLoop

from mmtempo.monitor.hook_calls import call_hooks

from .evaluation_subset import EvaluationSubset, call_after_val_epoch, check_subset
from .training_batches import build, evaluate, prefetch_to_device


@LOOPS.register_module()
class PrefetchValLoop(ValLoop):
    """mmengine's `ValLoop` with a prefetching dataloader and evaluations on subsets.

    Workers persist between evaluations, unless the dataloader has `persistent_workers=False`.

    Example::

        val_cfg = dict(type='PrefetchValLoop', subset=500, full_interval=4)

    Here every fourth evaluation of a training, and its last one, uses all samples. The others
    use 500, which are drawn once from the seed: the same in each evaluation, in all processes,
    and after a resume. Their metrics are logged as `subset/mIoU` and are used for no decision:
    `save_best='mIoU'`, early stopping and schedules that wait for a plateau see the evaluations
    on all samples only. Evaluation without training always uses all samples.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `ValLoop` does.
        subset: Size of the subset, as a number of samples (int) or a share of all below 1.0
            (float). Defaults to None: each evaluation uses all samples.
        full_interval: Interval, in evaluations, of those on all samples; needs `subset`.
            Defaults to None: only the last one of a training.
        **kwargs: Arguments of `ValLoop`.
    """

    def __init__(
        self,
        runner: Any,
        dataloader: Any,
        subset: int | float | None = None,
        full_interval: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_subset(subset, full_interval)
        super().__init__(runner, build(runner, dataloader, 'val_dataloader'), **kwargs)
        self._subset: EvaluationSubset | None = None
        if subset is not None:
            self._subset = EvaluationSubset(runner, self.dataloader, subset, full_interval)

    def run(self) -> dict:
        """Evaluate, and return the metrics."""
        prefetch_to_device(self.dataloader, self.runner.model, training=False)
        if self._subset is None:
            return self._run(True, len(self.dataloader.dataset))
        is_full = self._subset.is_full(self.runner)
        samples = len(self.dataloader.dataset) if is_full else self._subset.size
        with contextlib.nullcontext() if is_full else self._subset.limit_loader(self.runner):
            return self._run(is_full, samples)

    def _run(self, is_full: bool, samples: int) -> dict:
        """Do what stock's `run` does, but for the given number of samples."""
        runner = self.runner
        call_hooks(runner, 'before_val')
        call_hooks(runner, 'before_val_epoch')
        metrics = evaluate(self, getattr(self, 'val_loss', {}), 'val', samples)
        if self._subset is None:
            call_hooks(runner, 'after_val_epoch', metrics=metrics)
        else:
            metrics = call_after_val_epoch(runner, metrics, is_full)
        call_hooks(runner, 'after_val')
        return metrics
