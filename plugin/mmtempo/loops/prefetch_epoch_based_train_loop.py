"""Train by epochs, with a prefetching dataloader."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop

from mmtempo.evaluation.owed_evaluation import evaluate_owed, is_due
from mmtempo.loaders import PrefetchDataLoader, StreamPosition
from mmtempo.monitor.hook_calls import call_hooks

from .accumulation import count_iterations
from .training_batches import prefetch_to_device
from .training_step import PrefetchTraining


@LOOPS.register_module()
class PrefetchEpochBasedTrainLoop(PrefetchTraining, EpochBasedTrainLoop):
    """mmengine's `EpochBasedTrainLoop` with a prefetching dataloader that resumes exactly.

    It resumes within an epoch: training continues with the batch after the checkpoint, not at
    the start of the epoch. The first batches of the next epoch are made while the current epoch
    ends and is evaluated, unless the dataloader has `persistent_workers=False`: then workers
    start anew in each epoch, after the hooks at `before_train_epoch`, and see what these have
    changed in the dataset. An evaluation that was interrupted by a signal (see
    `AsyncCheckpointHook`) is repeated on resume.

    A dataloader that a hook assigns to `dataloader` is used from the next epoch on. A loader of
    `build_prefetch_dataloader` has all of these properties; any other is iterated as
    `EpochBasedTrainLoop` does.

    Example::

        train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=24, val_interval=1)

    With gradient accumulation, an iteration may be an update of several batches, see
    `PrefetchIterBasedTrainLoop`. An epoch of n batches then has ceil(n / k) iterations, of which
    the last may have fewer batches.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `EpochBasedTrainLoop` does.
        count: The unit of an iteration: 'iterations', one batch as in stock, or 'updates', all
            batches of an update. Defaults to 'iterations'.
        **kwargs: Arguments of `EpochBasedTrainLoop`.
    """

    @property
    def resumes_within_epoch(self) -> bool:
        """Whether a checkpoint saved within an epoch is resumed within it."""
        return self._batches is not None

    def _run(self) -> Any:
        if self._batches is not None:
            if self._iter > 0:
                self._batches.resume(lambda: StreamPosition(self._epoch))
            prefetch_to_device(self._batches.loader, self.runner.model, training=True)
        try:
            call_hooks(self.runner, 'before_train')
            evaluate_owed(self.runner)
            while self._epoch < self._max_epochs and not self.stop_training:
                self.run_epoch()
                self._decide_current_val_interval()
                if is_due(self, self._epoch):
                    self.runner.val_loop.run()
            call_hooks(self.runner, 'after_train')
        finally:
            if self._batches is not None:
                self._batches.loader.close()
        return self.runner.model

    def run_epoch(self) -> None:
        """Train on the rest of the current epoch."""
        call_hooks(self.runner, 'before_train_epoch')
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
            self._batches.log_statistics()
        call_hooks(self.runner, 'after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train on one batch, or on the batches of one update."""
        if self._batches is None:
            super().run_iter(idx, data_batch)
        else:
            self._step(self._batches, idx, data_batch)

    def _adopt(self) -> None:
        """Use the dataloader that `dataloader` holds now; a hook may have replaced it."""
        current = self.dataloader
        if current is self._used:
            return
        if isinstance(self._used, PrefetchDataLoader):
            self._used.close()
        self.runner.logger.info(
            f'train_dataloader: a hook has replaced it by a {type(current).__name__}, used from '
            f'epoch {self._epoch + 1} on'
        )
        count_iterations(current, self.batches_per_iteration)
        self._use(current)
        if self._batches is not None:
            self._batches.resume(lambda: StreamPosition(self._epoch))
            prefetch_to_device(current, self.runner.model, training=True)
