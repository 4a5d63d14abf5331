"""Save checkpoints asynchronously."""

from __future__ import annotations

import math
import os
import os.path as osp
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmtempo.checkpoint import directory as folder
from mmtempo.checkpoint.fence import SnapshotFence, change_weights_after, may_read_files
from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.checkpoint.resume import INTERRUPTED, MARKER
from mmtempo.checkpoint.saver import CheckpointSaver, Replacing
from mmtempo.checkpoint.signals import StopOnSignal, counts_epochs, repeats_epochs
from mmtempo.checkpoint.weights_check import WeightsCheck
from mmtempo.evaluation.owed_evaluation import is_owed
from mmtempo.policies.resume import fit_to_policy
from mmtempo.system.folder_lock import FolderLock
from mmtempo.utils.checks import is_number


@HOOKS.register_module()
class AsyncCheckpointHook(CheckpointHook):
    """Asynchronous, crash-safe `CheckpointHook`.

    The state is copied while the next iteration computes. A separate process writes the copy to a
    temporary file, syncs it and renames it; older files are removed once the new one is durable.
    Files, their content, `last_checkpoint` and the keys of the message hub are those of
    `CheckpointHook`. `resume=True` takes the newest checkpoint whose checksums are right.

    Example::

        default_hooks = dict(
            checkpoint=dict(
                type='AsyncCheckpointHook', by_epoch=False, interval=5000, max_keep_ckpts=3,
                save_best='mIoU'))

    A failed save, as on a full disk, is logged and leaves the earlier files untouched; the next
    save is tried at its usual time. Only a failure of the last save fails the run.

    SIGINT and SIGTERM end the run after the current iteration with a checkpoint. A prefetching
    loop with workers also ends while it waits for a batch; other loops end when that batch has
    arrived. A second Ctrl-C ends at once. Several processes end after the same iteration, within
    about 1 s or one iteration.

    The stock epoch-based loop cannot resume within an epoch: `interrupted.pth` is saved and the
    epoch is repeated, so what counts iterations, as a schedule by iteration, counts the repeated
    ones too. `PrefetchEpochBasedTrainLoop` resumes within the epoch. An evaluation that the signal
    interrupts, or that was due next, is noted in the checkpoint: the prefetching loops run it on
    resume, so that `save_best` judges it; stock loops omit it and the log reports that.

    A training locks its work dir and `out_dir`: a second training there ends with an error that
    names the first. tools/train.py locks before it writes anything; a Runner built by hand has
    written its log and config by then. Several of these hooks in one training share the lock and
    the marker, which names the newest file of any of them. On a signal the first of them saves.

    Weights with nan or infinity are never published where `SparseRuntimeInfoHook` judges them:
    such a save fails, and by default the run ends with the advice to resume from an earlier file.

    User hooks that are called after this one, as with priority LOWEST, find each file in place:
    with such hooks the training waits for the writer, and the log reports that.

    In `before_save_checkpoint`, hooks find the live tensors of the training on their device:
    they may replace them in the checkpoint, but must not change them in place.

    Sharded models, runners with another `save_checkpoint` and folders that are not local are
    saved as by `CheckpointHook`, and the log reports that.

    It logs no keys; each save writes a line with its cost to the log.

    Args:
        on_busy: What to do while the previous save is still being written: 'wait' for it, or
            'skip' this save. Best and last checkpoints are never skipped. Defaults to 'wait'.
        on_error: What to do after a failed save: 'warn' and continue, or 'raise'. Defaults to
            'warn'.
        save_on_signal: Whether SIGINT and SIGTERM save before the run ends. Defaults to True.
        writer_timeout: Seconds without any progress after which the writer process is killed and
            the training process writes the files; each 10 MB of a larger checkpoint add one
            second. Defaults to 600.0.
        args: Positional arguments of `CheckpointHook`.
        kwargs: Keyword arguments of `CheckpointHook`.
    """

    # As CheckpointHook: after the other hooks, so that a checkpoint holds their changes.
    priority = 'VERY_LOW'
    file_backend: Any

    def __init__(
        self,
        *args: Any,
        on_busy: str = 'wait',
        on_error: str = 'warn',
        save_on_signal: bool = True,
        writer_timeout: float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, value, other in (('on_busy', on_busy, 'skip'), ('on_error', on_error, 'raise')):
            default = 'wait' if other == 'skip' else 'warn'
            if value not in (default, other):
                raise ValueError(
                    f'default_hooks.checkpoint.{name} must be {default!r} or {other!r}, '
                    f'found {value!r}'
                )
        if not (is_number(writer_timeout, above=0) or writer_timeout == math.inf):
            raise ValueError(
                'default_hooks.checkpoint.writer_timeout must be a number above 0, in seconds, '
                f'found {writer_timeout!r}'
            )
        self.on_busy, self.on_error = on_busy, on_error
        self.writer_timeout = writer_timeout
        self.save_on_signal = save_on_signal
        self._asked_dir: Any = self.out_dir
        self._start_dir: str | None = None  # the folder that a relative `out_dir` starts from
        self._saver: CheckpointSaver | None = None  # None: CheckpointHook saves
        self._waits = False  # for the end of each save, as user hooks may read its file
        self._lock: FolderLock | None = None  # held from `before_run` to `after_run`
        self._last_saved: tuple[Any, int, int] | None = None  # file, epoch and iteration
        self._stop = StopOnSignal(self._save_on_signal, self._abandon)
        self._fence = SnapshotFence(self._before_change, self.stop_if_asked)

    @property
    def saves_copies(self) -> bool:
        """Whether the writer saves copies of the state, and judges the weights in them."""
        return self._saver is not None

    @property
    def is_collecting(self) -> bool:
        """Whether the content of such a save is being collected now."""
        return self._saver is not None and self._saver.is_collecting

    def await_save(self) -> None:
        """Wait for the running save; if it fails, make hook and hub name the earlier files."""
        if self._saver is not None:
            self._saver.await_save()

    def before_run(self, runner: Any) -> None:
        if self._lock is None and folder.is_about_to_train(runner):
            self._lock = folder.lock(runner, self, self._asked_dir)
        register_safe_downloads()
        # `install` inserts the fence before this hook while the runner iterates over its hooks,
        # so this method is called twice. Runners of other kinds may save folders.
        if self._fence.install(runner) and isinstance(runner, Runner):
            folder.repair_marker(runner, folder.resolved(runner, self._asked_dir))

    def after_load_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        if getattr(runner, '_resume', False):
            fit_to_policy(runner, checkpoint)

    def before_train(self, runner: Any) -> None:
        # CheckpointHook appends the name of the work dir again at each call.
        self.out_dir = self._asked_dir
        super().before_train(runner)
        reason = folder.why_stock(runner, self.file_backend)
        if reason is not None:
            runner.logger.warning(
                f'AsyncCheckpointHook: {reason}; checkpoints are saved as CheckpointHook does: '
                'each save blocks the training, and a signal ends the run without a checkpoint.'
            )
            return
        self._start_dir = os.getcwd()
        folder.prefer_own_best(self)
        if is_main_process():
            folder.prepare(runner, self)
        others = change_weights_after(self, runner)
        if others:
            runner.logger.info(
                f'AsyncCheckpointHook: {", ".join(others)} may change weights after a save; each '
                'checkpoint is copied before the training continues.'
            )
        readers = may_read_files(self, runner)
        self._waits = bool(readers)
        if readers:
            runner.logger.info(
                f'AsyncCheckpointHook: {", ".join(readers)} may read a checkpoint after its save; '
                'the training waits until each file is durable.'
            )
        # Created here, in the main thread, because it starts the writer process.
        self._saver = CheckpointSaver(
            self, runner, self._fence.arm, not others, self.writer_timeout
        )
        self._fence.attach(runner)
        if self._is_first_for_signals(runner):
            self._stop.begin(runner)
        if is_owed(runner) and not getattr(runner.train_loop, 'repeats_evaluations', False):
            runner.logger.warning(
                f'The evaluation after iteration {runner.iter} is missing: the run was stopped '
                f'before its end, and {type(runner.train_loop).__name__} does not repeat it; use '
                'PrefetchIterBasedTrainLoop or PrefetchEpochBasedTrainLoop.'
            )

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        if self._saver is not None:
            # A failure of the last save must raise, which `after_train` does.
            if self._saver.has_ended and not self.is_last_train_iter(runner):
                self._saver.report()
            self._stop.after_iteration(runner, batch_idx)

    def after_train_epoch(self, runner: Any) -> None:
        super().after_train_epoch(runner)
        if self._saver is not None:
            if not self.is_last_train_epoch(runner):
                self._saver.report()
            self._stop.after_epoch(runner)

    def before_val_epoch(self, runner: Any) -> None:
        self._stop.before_evaluation(runner)

    def after_val_iter(self, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        self._stop.in_evaluation(runner, batch_idx)

    def after_val(self, runner: Any) -> None:
        self._stop.after_evaluation()

    def after_train(self, runner: Any) -> None:
        saver = self._saver
        if saver is not None:
            self._fence.detach()
            try:
                saver.wait(is_last=True)  # before `_stop.end`: a signal must not cut it off
            finally:
                saver.close()
                self._saver = None
                self._stop.end()
            if is_main_process():
                folder.clean(runner, self)
        super().after_train(runner)  # publishes checkpoints, which are durable by now

    def _publish_model(self, runner: Any, ckpt_path: str) -> None:
        if self._start_dir is not None and self._start_dir != os.getcwd():
            ckpt_path = osp.join(self._start_dir, ckpt_path)
        super()._publish_model(runner, ckpt_path)

    def after_run(self, runner: Any) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def save_now(self, runner: Any) -> None:
        """Save and return once the checkpoint is durable; call it between two iterations.

        For a loop that is about to end the training with an error, as when its loader fails.
        """
        if self._saver is not None and runner.iter:
            self._save_on_stop(runner, runner.epoch, runner.iter)

    def stop_if_asked(self, runner: Any) -> None:
        """End the run if a signal has arrived; for a loop, between two iterations.

        A loop calls it while it waits for a batch, which may never arrive, also in an evaluation.
        """
        self._stop.between_iterations(runner)

    def _is_first_for_signals(self, runner: Any) -> bool:
        """Return whether this is the first hook of this type that saves on a signal."""
        hooks = [hook for hook in runner.hooks if isinstance(hook, AsyncCheckpointHook)]
        able = [hook for hook in hooks if hook.save_on_signal and hook.saves_copies]
        return self.save_on_signal and (self not in able or able[0] is self)

    def _before_change(self) -> bool:
        return self._saver is not None and self._saver.await_copies()

    def _abandon(self) -> None:
        if self._saver is not None:
            self._saver.abandon()

    def _save_checkpoint(self, runner: Any) -> None:
        is_last = self.is_last_train_epoch if self.by_epoch else self.is_last_train_iter
        saver = self._saver
        if self.on_busy == 'skip' and saver is not None and saver.is_busy and not is_last(runner):
            # Named, because mmengine's logger drops a warning whose text it has shown before.
            name = self.filename_tmpl.format((runner.epoch if self.by_epoch else runner.iter) + 1)
            runner.logger.warning(
                f"{name}: skipped, the previous save is still being written (on_busy='skip')."
            )
            return
        super()._save_checkpoint(runner)
        self._wait_for_readers()

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict) -> None:
        if self._saver is None:
            super()._save_checkpoint_with_step(runner, step, meta)
            return
        with self._saver.group():
            if self.max_keep_ckpts > 0 and step not in list(self.keep_ckpt_ids)[-1:]:
                if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                    oldest = self.filename_tmpl.format(self.keep_ckpt_ids.popleft())
                    self._saver.remove(osp.join(self.out_dir, oldest))
                self.keep_ckpt_ids.append(step)
                runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
            self._save_as(runner, self.filename_tmpl.format(step), meta)
            if self.by_epoch:
                self._saver.remove(osp.join(self.out_dir, INTERRUPTED))

    def _save_as(self, runner: Any, name: str, meta: dict) -> None:
        assert self._saver is not None
        with self._saver.group() as group:
            self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
            runner.message_hub.update_info('last_ckpt', self.last_ckpt)
            self._last_saved = (self.last_ckpt, meta['epoch'], meta['iter'])
            self._saver.add(
                self.out_dir,
                name,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                **self.args,
            )
            group.marker = (osp.join(runner.work_dir, MARKER), str(self.last_ckpt))

    def _save_best_checkpoint(self, runner: Any, metrics: dict) -> None:
        if self._saver is None or not self.save_best:
            super()._save_best_checkpoint(runner, metrics)
            return
        saver, backend = self._saver, self.file_backend
        # Stock removes the earlier file before it saves.
        self.file_backend = Replacing(backend, remove=saver.remove, rmtree=saver.remove)
        try:
            with saver.group():
                runner = Replacing(runner, save_checkpoint=saver.add)
                super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        self._wait_for_readers()

    def _wait_for_readers(self) -> None:
        """Wait for the file if user hooks that are called later may read it."""
        if self._saver is not None and self._waits:
            self._saver.await_save()

    def _save_on_signal(self, runner: Any, epoch: int, iteration: int, anew: bool = False) -> None:
        for hook in runner.hooks:
            if getattr(hook, 'writes_late', False):
                hook.flush()
        self._save_on_stop(runner, epoch, iteration, anew)
        weights = WeightsCheck.of(runner)
        if weights is not None:
            weights.stop()  # bad weights end the run with their error instead

    def _save_on_stop(self, runner: Any, epoch: int, iteration: int, anew: bool = False) -> None:
        """Save the reached state unless it is saved; return once that is durable.

        Args:
            runner: The runner of the training.
            epoch: Number of completed epochs.
            iteration: Number of completed iterations.
            anew: Whether to save a state that is saved already. Defaults to False.
        """
        assert self._saver is not None
        self._saver.wait()
        meta = dict(epoch=epoch, iter=iteration)
        is_within_epoch, start = True, 0
        if counts_epochs(runner):
            start = epoch * len(runner.train_dataloader)
            is_within_epoch = iteration != start
        if is_within_epoch and repeats_epochs(runner):
            meta['iter'] = start  # the loop repeats, and counts, the iterations of the epoch
            runner.logger.warning(
                f'Epoch {epoch + 1} is not complete; when resumed, it is repeated from its start.'
            )
        if self.by_epoch and is_within_epoch:
            self._save_as(runner, INTERRUPTED, meta)
        else:
            step = epoch if self.by_epoch else iteration
            if anew or self._last_saved != (self.last_ckpt, epoch, meta['iter']):
                self._save_checkpoint_with_step(runner, step, meta)
        self._saver.wait(is_last=True)
