"""Trains epoch by epoch, on batches that are there before they are needed."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from mmtempo.evaluation.owed_evaluation import evaluate_owed, is_due
from mmtempo.loaders import PrefetchDataLoader, StreamPosition

from .accumulation import batches_per_iteration, check_wrapper, counted, uncounted
from .shared_failure import shared_failure
from .training_batches import TrainingBatches, build, prefetch_to_device


@LOOPS.register_module()
class PrefetchEpochBasedTrainLoop(EpochBasedTrainLoop):
    """mmengine's `EpochBasedTrainLoop` with a loader that goes on exactly where it was.

    Also within an epoch: a checkpoint of its middle is resumed there, and not at its start. The
    next epoch's first batches are made while this one ends and is evaluated, unless the loader has
    `persistent_workers=False`: then workers start anew with each epoch, after the hooks at
    `before_train_epoch`, and see what these have changed in the data set. An evaluation that a
    signal has cut off (see `AsyncCheckpointHook`) is done when the run is resumed.

    A loader that a hook puts into `dataloader` is used from the next epoch on. One that
    `build_prefetch_dataloader` has built does all of this as well; any other is iterated over as
    `EpochBasedTrainLoop` does.

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

    dataloader: Any

    def __init__(
        self, runner: Any, dataloader: Any, count: str = 'iterations', **kwargs: Any
    ) -> None:
        self.count, self.batches_per_iteration = count, batches_per_iteration(runner, count)
        loader = build(runner, dataloader, 'train_dataloader', endless=True)
        super().__init__(runner, counted(loader, self.batches_per_iteration), **kwargs)
        self._used: Any = None
        self._batches: TrainingBatches | None = None
        self._use(loader)

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
            return self._run()

    def _run(self) -> Any:
        if self._batches is not None:
            if self._iter > 0:
                self._batches.resume(lambda: StreamPosition(self._epoch))
            prefetch_to_device(self._batches.loader, self.runner.model, training=True)
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
            if self._batches is not None:
                self._batches.loader.close()
        return self.runner.model

    def run_epoch(self) -> None:
        """Train on what is left of an epoch."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self._adopt()
        if self._batches is None:
            for number, batch in enumerate(self.dataloader):
                self.run_iter(number, batch)
        else:
            loader = self._batches.loader
            while loader.place.epoch == self._epoch:
                batch = next(self._batches)
                self.run_iter(self._batches.number, batch)
            self._batches.tell()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train on one batch, or on those of one update."""
        if self._batches is None:
            super().run_iter(idx, data_batch)
        else:
            self._batches.step(self, idx, data_batch)

    def _adopt(self) -> None:
        """Use the loader that `dataloader` holds now; a hook may have put another one there."""
        found = uncounted(self.dataloader)
        if found is self._used:
            return
        if isinstance(self._used, PrefetchDataLoader):
            self._used.close()
        self.runner.logger.info(
            f'train_dataloader: replaced by a {type(found).__name__} in epoch {self._epoch + 1}'
        )
        self.dataloader = counted(found, self.batches_per_iteration)
        self._use(found)
        if self._batches is not None:
            self._batches.resume(lambda: StreamPosition(self._epoch))
            prefetch_to_device(found, self.runner.model, training=True)

    def _use(self, loader: Any) -> None:
        self._used, self._batches = loader, None
        if isinstance(loader, PrefetchDataLoader):
            self._batches = TrainingBatches(self.runner, loader, self.batches_per_iteration)
