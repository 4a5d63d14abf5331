"""Train by iterations, with a prefetching dataloader."""

from __future__ import annotations

from typing import Any

from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop

from mmtempo.evaluation.owed_evaluation import evaluate_owed, is_due
from mmtempo.loaders import ResumableInfiniteSampler, StreamPosition
from mmtempo.monitor.hook_calls import call_hooks

from .training_batches import prefetch_to_device
from .training_step import PrefetchTraining


@LOOPS.register_module()
class PrefetchIterBasedTrainLoop(PrefetchTraining, IterBasedTrainLoop):
    """mmengine's `IterBasedTrainLoop` with a prefetching dataloader that resumes exactly.

    Batches are a function of the seed and the position in the stream, whatever the number of
    workers, and every checkpoint has the position. On resume no batch is made twice and none is
    skipped. An evaluation that was interrupted by a signal (see `AsyncCheckpointHook`) is
    repeated first.

    Workers start when the loop is built, as in mmengine 0.10, and not after a checkpoint has been
    loaded. A hook that changes the dataset later sets `dataloader._iterator` to None, as those
    of mmdet do; with `persistent_workers=False` workers start with the first batch, and anew in
    each epoch of the sampler. A hook may assign an iterator to `dataloader_iterator`, as for
    stock's loop. `fast_forward_on_resume` has no effect, because no batches are skipped.

    Example::

        train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=200_000, val_interval=5000)

    With gradient accumulation, an iteration may be an update of several batches. Then
    `max_iters`, `val_interval`, schedules, weight averages, log lines and checkpoints count
    updates. The gradient is the mean over all samples of the update, as that of one large batch,
    and the log has means over them. An update ends with the epoch, if the sampler has epochs;
    hooks get the first of its batches::

        train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=50_000, count='updates')
        optim_wrapper = dict(type='SparseOptimWrapper', accumulative_counts=4, ...)

    The gradient equals that of the large batch if losses are means over samples and the model
    treats samples independently, which excludes batch normalization.

    Args:
        runner: The runner.
        dataloader: A stock dataloader dict, see `build_prefetch_dataloader`. A loader that is
            built already is used as `IterBasedTrainLoop` does.
        count: The unit of an iteration: 'iterations', one batch as in stock, or 'updates', all
            batches of an update. Defaults to 'iterations'.
        **kwargs: Arguments of `IterBasedTrainLoop`.
    """

    def __init__(
        self, runner: Any, dataloader: Any, count: str = 'iterations', **kwargs: Any
    ) -> None:
        super().__init__(runner, dataloader, count, **kwargs)
        if self._batches is not None:
            self.dataloader_iterator = self._batches
            self._batches.loader.start_early()  # workers start while a checkpoint may be loaded

    def _run(self) -> Any:
        batches = self._batches
        if batches is None:
            return IterBasedTrainLoop.run(self)
        call_hooks(self.runner, 'before_train')
        call_hooks(self.runner, 'before_train_epoch')
        if self._iter > 0 and self._is_ours():
            batches.resume(self._position_by_count)
        prefetch_to_device(batches.loader, self.runner.model, training=True)
        try:
            evaluate_owed(self.runner)
            while self._iter < self._max_iters and not self.stop_training:
                self.runner.model.train()
                self.run_iter(next(self.dataloader_iterator))
                self._decide_current_val_interval()
                if is_due(self, self._iter):
                    batches.log_statistics()
                    self.runner.val_loop.run()
            batches.log_statistics()
        finally:
            batches.loader.close()
        call_hooks(self.runner, 'after_train_epoch')
        call_hooks(self.runner, 'after_train')
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch, or on the batches of one update."""
        if self._batches is not None and self._is_ours():
            self._step(self._batches, self._iter, data_batch)
            return
        if self.batches_per_iteration > 1:
            raise ValueError(
                "train_cfg.count='updates' needs the loop's own dataloader_iterator, found a "
                f'{type(self.dataloader_iterator).__name__} that a hook has assigned; remove '
                "that hook, or use train_cfg.count='iterations'"
            )
        super().run_iter(data_batch)

    def _is_ours(self) -> bool:
        return self.dataloader_iterator is self._batches

    def _position_by_count(self) -> StreamPosition:
        """Return the position that the iteration implies, for a checkpoint without one."""
        assert self._batches is not None
        # Not `self.dataloader`, which a hook may have replaced.
        loader = self._batches.loader
        epoch, done = divmod(self._iter, len(loader))
        if isinstance(loader.sampler, ResumableInfiniteSampler):  # it has no epochs
            epoch, done = 0, self._iter
        batches = done * self.batches_per_iteration
        samples = batches * (loader.batch_size or 1) * loader.processes
        return StreamPosition(epoch, batches, samples, loader.processes)
