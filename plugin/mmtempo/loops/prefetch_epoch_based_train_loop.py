"""Trains epoch by epoch, on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from ..core.shared_failure import shared_failure
from ..loaders import Place, PrefetchDataLoader
from .accumulation import batches_per_iteration, check_wrapper, counted
from .owed_evaluation import evaluate_owed, is_due
from .prefetching import TrainingBatches, build, prefetch_to_device


@LOOPS.register_module()
class PrefetchEpochBasedTrainLoop(EpochBasedTrainLoop):
    """mmengine's `EpochBasedTrainLoop` with a loader that goes on exactly where it was.

    Also within an epoch: a checkpoint of its middle is resumed there, and not at its start. The
    next epoch's first batches are made while this one ends and is evaluated. An evaluation that
    a signal has cut off (see `AsyncCheckpointHook`) is done when the run is resumed.

    Example::

        train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=24, val_interval=1)

    Where gradients accumulate, an iteration may be an update of all of its batches, as
    `PrefetchIterBasedTrainLoop` tells; an epoch of n batches has ceil(n / k) of them, and the
    last one may have fewer batches.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `EpochBasedTrainLoop` does.
        count: What an iteration is: a batch, as in stock's 'iterations', or an update, which is
            'updates'. Defaults to 'iterations'.
        **kwargs: As for `EpochBasedTrainLoop`.
    """

    def __init__(
        self, runner: Any, dataloader: Any, count: str = 'iterations', **kwargs: Any
    ) -> None:
        self.count, self.batches_per_iteration = count, batches_per_iteration(runner, count)
        self._loader = build(runner, dataloader, 'train_dataloader', endless=True)
        super().__init__(runner, counted(self._loader, self.batches_per_iteration), **kwargs)
        self._batches: TrainingBatches | None = None
        if isinstance(self._loader, PrefetchDataLoader):
            self._batches = TrainingBatches(runner, self._loader, self.batches_per_iteration)

    @property
    def resumes_within_epoch(self) -> bool:
        """Whether a checkpoint of the middle of an epoch is resumed there."""
        return self._batches is not None

    @property
    def repeats_evaluations(self) -> bool:
        """Whether an evaluation that a signal has cut off is done on resume."""
        return self._batches is not None

    def run(self) -> Any:
        """Train; returns the model."""
        check_wrapper(self.runner.optim_wrapper, self.count, self.batches_per_iteration)
        with shared_failure():
            return super().run() if self._batches is None else self._run(self._batches)

    def _run(self, batches: TrainingBatches) -> Any:
        if self._iter > 0:
            batches.resume(lambda: Place(self._epoch))
        prefetch_to_device(self._loader, self.runner.model, training=True)
        try:
            self.runner.call_hook('before_train')
            evaluate_owed(self.runner)
            while self._epoch < self._max_epochs and not self.stop_training:
                self.run_epoch()
                self._decide_current_val_interval()
                if is_due(self, self._epoch):
                    self.runner.val_loop.run()
            self.runner.call_hook('after_train')
        finally:
            self._loader.close()
        return self.runner.model

    def run_epoch(self) -> None:
        """What is left of an epoch."""
        if self._batches is None:
            super().run_epoch()
            return
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        while self._loader.place.epoch == self._epoch:
            batch = next(self._batches)
            self.run_iter(self._batches.number, batch)
        self._batches.tell()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """One iteration."""
        if self._batches is None:
            super().run_iter(idx, data_batch)
        else:
            self._batches.step(self, idx, data_batch)
