"""Keep the outputs of training steps on the device until they are logged."""

from __future__ import annotations

import os.path as osp
import weakref
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, RuntimeInfoHook
from mmengine.registry import HOOKS

from mmtempo.checkpoint.fence import has_user_code
from mmtempo.checkpoint.io.snapshot import Deferred
from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.checkpoint.signals import is_training
from mmtempo.checkpoint.weights_check import WeightsCheck, await_saves, is_copied_now, saves_copies
from mmtempo.logging.history_length import length_of_history, log_global_windows, totals_of
from mmtempo.logging.nonfinite import NonFiniteWatch
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.utils.checks import is_whole
from mmtempo.utils.runner import wrappers_of

TOTALS = 'mmtempo_totals'  # key of the running totals in the message hub of a checkpoint


@HOOKS.register_module()
class SparseRuntimeInfoHook(RuntimeInfoHook):
    """`RuntimeInfoHook` that never waits for the device and keeps histories of bounded length.

    Losses stay on the device. They are copied together when a line is logged, or when a history
    of the message hub is read. Histories keep as many of the last values as the windows of the
    log processor ask for, and running totals: a window 'global' gets the running mean, minimum or
    maximum.

    Example::

        default_hooks = dict(runtime_info=dict(type='SparseRuntimeInfoHook', on_nonfinite='stop'))

    It logs the keys of `RuntimeInfoHook`:

    ===================  ==========================================================
    key                  value
    ===================  ==========================================================
    ``train/lr``         learning rate, every iteration
    ``train/<name>``     outputs of the training step: losses, accuracies
    ``val/<metric>``     results of the last evaluation
    ===================  ==========================================================

    Args:
        history_length: Smallest number of values to keep for each key. Defaults to 100.
        on_nonfinite: What to do when a loss, or the gradient norm where `SparseOptimWrapper`
            computes it, is nan or infinite. 'stop' ends the run once the values have been read
            for the log, and reports the iteration and the values; 'warn' continues; 'skip' omits
            such updates, decided on the device (needs `SparseOptimWrapper`). The weights are
            judged as described below, and bad weights end the run with 'skip' as well.
            Iterations are counted from 1, as in the log. Defaults to 'stop'.

    Weights are bad if a trainable parameter holds nan or infinity, or a buffer holds nan, that it
    did not hold at the start of the training:

    - Before a save of `AsyncCheckpointHook` nothing is read from the device. Its writer judges
      the copies; bad copies are never published, and the earlier files and the marker stay. The
      run ends in the next iteration; with several processes all of them end at their next save
      or evaluation. With 'warn' the run continues, and the save counts as failed like any other:
      if it is the last save of the run, the run fails.
    - Before a save of any other hook, which synchronizes with the device anyway, the weights are
      read; with 'warn' they are saved.
    - During an evaluation the device judges them; the run ends before the scores are logged or
      select a best checkpoint.
    - At the end of the training they are read, after the last save is durable.
    """

    # As RuntimeInfoHook: first, because the other hooks read what it puts into the message hub.
    priority = 'VERY_HIGH'

    def __init__(self, history_length: int = 100, on_nonfinite: str = 'stop') -> None:
        if not is_whole(history_length):
            raise ValueError(
                'default_hooks.runtime_info.history_length must be an integer of at least 1, '
                f'found {history_length!r}'
            )
        super().__init__()
        self.history_length = history_length
        self.on_nonfinite = on_nonfinite
        NonFiniteWatch(on_nonfinite, print)  # raises for an unknown action
        # Both are set from the start of a training to its end.
        self._scalars: Any = None
        self.weights: WeightsCheck | None = None
        self._looked_at = -1  # the iteration at which the weights were read or judged last
        self._is_judging = False  # whether this evaluation judges the weights

    def before_run(self, runner: Any) -> None:
        super().before_run(runner)
        register_safe_downloads()

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        # The hub outlives the runner, so it must not keep it alive: a weak reference.
        hub, of_run, least = runner.message_hub, weakref.ref(runner), self.history_length
        watch = NonFiniteWatch(
            self.on_nonfinite, runner.logger.warning, lambda: _advice(hub, of_run())
        )
        self._scalars = ScalarBuffer(
            hub, watch, lambda key: length_of_history(of_run(), least, key)
        )
        self._looked_at = -1
        self._scalars.bound()
        for key, totals in (hub.pop_info(TOTALS) or {}).items():
            if key in hub.log_scalars:
                hub.log_scalars[key].totals = totals
        log_global_windows(runner, self.history_length)
        if self.on_nonfinite == 'skip':
            _skip_updates(runner)
        self.weights = WeightsCheck(runner, self._scalars, watch)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        scalars = self._scalars
        scalars.bound()  # first, so that a history that a hook has replaced gets no older value
        for key, value in (outputs or {}).items():
            scalars.note(f'train/{key}', value)
        scalars.seal(runner.iter)
        if self._is_saved_now(runner):
            self._before_save(runner)
        assert self.weights is not None
        self.weights.poll()

    def before_val(self, runner: Any) -> None:
        super().before_val(runner)
        # Not after a failed training, when the user evaluates by hand.
        self._is_judging = self.weights is not None and is_training(runner)
        if self._is_judging and self.weights is not None:
            self._looked_at = runner.iter
            self.weights.begin(runner)
            self.weights.stop()

    def after_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_judging and self.weights is not None:
            self.weights.poll()

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        if self._is_judging and self.weights is not None:
            self.weights.stop(wait=True)
        super().after_val_epoch(runner, metrics)

    def after_train_epoch(self, runner: Any) -> None:
        if any(hook.by_epoch for hook in _savers(runner)):
            self._before_save(runner)

    def after_train(self, runner: Any) -> None:
        super().after_train(runner)
        await_saves(runner)
        self._look(runner)
        self._scalars.close()
        self._scalars = self.weights = None

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        is_copied = is_copied_now(runner)
        if self._scalars is not None:
            # A saver that is no CheckpointHook: `after_train_iter` has not read the weights.
            if not is_copied and self._looked_at != runner.iter:
                self._look(runner, together=False)
            self._scalars.bound()
        hub = checkpoint['message_hub']
        totals = totals_of(runner.message_hub.log_scalars, hub['log_scalars'])
        # The writer thread waits for values that are on their way from the device, unless a hook
        # of a user may read them.
        is_late = is_copied and not any(
            has_user_code(hook, 'before_save_checkpoint') for hook in runner.hooks
        )
        hub['runtime_info'][TOTALS] = Deferred(totals, is_of_host=True) if is_late else totals()

    def _before_save(self, runner: Any) -> None:
        """Read and judge the weights, unless all savers judge their copies."""
        assert self.weights is not None
        savers = _savers(runner)
        if savers and all(saves_copies(hook) for hook in savers):
            self.weights.stop()
        else:
            self._look(runner)

    def _look(self, runner: Any, together: bool = True) -> None:
        """Raise NonFiniteError before bad weights are saved; waits for the device."""
        if self.weights is not None:
            self._looked_at = runner.iter
            self.weights.look(runner, together)

    def _is_saved_now(self, runner: Any) -> bool:
        # Checked before the saver is called, because CheckpointHook deletes older files first.
        return any(
            not hook.by_epoch and self.every_n_train_iters(runner, hook.interval, hook.save_begin)
            for hook in _savers(runner)
        ) or self.is_last_train_iter(runner)


def _savers(runner: Any) -> list[CheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]


def _advice(hub: Any, runner: Any) -> str:
    """Return how to continue after non-finite values, for the end of the error."""
    if runner is not None:
        await_saves(runner)  # a save that fails makes the hub name the earlier files
    saved = [hub.get_info(key) for key in ('last_ckpt', 'best_ckpt')]
    there = [path for path in saved if path and osp.isfile(path)]
    if there:
        start = f'The last checkpoint, {there[0]}, is from before these values; resume from it'
    elif is_main_process():
        start = 'No checkpoint has been written yet; start again'
    else:
        start = 'The log of the main process names the last checkpoint; resume from it'
    return (
        f'{start} with a lower learning rate, gradient clipping (optim_wrapper.clip_grad) or '
        "another loss scale; default_hooks.runtime_info.on_nonfinite='skip' omits such updates, "
        "'warn' continues."
    )


def _skip_updates(runner: Any) -> None:
    """Have each optimizer wrapper skip updates whose gradients are not finite."""
    for one in wrappers_of(runner):
        if not hasattr(one, 'skip_nonfinite'):
            raise ValueError(
                "default_hooks.runtime_info.on_nonfinite='skip' needs optim_wrapper.type="
                "'SparseOptimWrapper' or 'SparseAmpOptimWrapper', found "
                f"{type(one).__name__!r}; change it, or use on_nonfinite='stop'"
            )
        one.skip_nonfinite = True
