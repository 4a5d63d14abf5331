"""Evaluates on batches that are there before they are needed."""

from __future__ import annotations

import contextlib
from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import ValLoop

from .evaluation_subset import EvaluationSubset, check_subset, tell_hooks
from .training_batches import build, evaluate, prefetch_to_device


@LOOPS.register_module()
class PrefetchValLoop(ValLoop):
    """mmengine's `ValLoop` with a prefetching loader, and evaluations over less in between.

    Workers stay from one evaluation to the next, unless the loader has
    `persistent_workers=False`.

    Example::

        val_cfg = dict(type='PrefetchValLoop', subset=500, full_interval=4)

    Then every fourth evaluation of a training, and its last one, is over all samples, and the
    others are over 500, which are drawn once from the seed: the same in each evaluation, in all
    processes, and after a resume. Their metrics are logged as `subset/mIoU`, and are nobody's
    score: `save_best='mIoU'`, early stopping, and schedules that wait for a plateau know only
    the evaluations over all. So does whoever evaluates without training.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `ValLoop` does.
        subset: Samples of the evaluations in between, as a number or, below 1.0, as a share.
            Defaults to None: each evaluation is over all samples.
        full_interval: Every so many evaluations one is over all samples; with `subset` only.
            Defaults to None: just the last one of a training is.
        **kwargs: As for `ValLoop`.
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
        """Evaluate; returns the metrics."""
        prefetch_to_device(self.dataloader, self.runner.model, training=False)
        if self._subset is None:
            return self._run(True, len(self.dataloader.dataset))
        is_full = self._subset.is_full(self.runner)
        samples = len(self.dataloader.dataset) if is_full else self._subset.size
        with contextlib.nullcontext() if is_full else self._subset.given(self.runner):
            return self._run(is_full, samples)

    def _run(self, is_full: bool, samples: int) -> dict:
        """As stock's `run`, which iterates over the loader and knows one number of samples."""
        runner = self.runner
        runner.call_hook('before_val')
        runner.call_hook('before_val_epoch')
        metrics = evaluate(self, getattr(self, 'val_loss', {}), 'val', samples)
        if self._subset is None:
            runner.call_hook('after_val_epoch', metrics=metrics)
        else:
            metrics = tell_hooks(runner, metrics, is_full)
        runner.call_hook('after_val')
        return metrics
