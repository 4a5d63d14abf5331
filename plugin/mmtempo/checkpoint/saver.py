"""Pass what the code of stock decides to save and remove to a durable writer."""

from __future__ import annotations

import copy
import os
import os.path as osp
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from mmengine.dist import is_main_process

from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.snapshot import TornError
from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.utils.phases import charged_to
from mmtempo.utils.runner import unwrapped
from mmtempo.utils.units import duration, size

from .content import changed_by_updates, checkpoint_of
from .finite_weights import NonFiniteWeights
from .loading import why_refused
from .weights_check import WeightsCheck

# Newest save of each runner, by any hook. Several hooks share a marker, which must name the newest
# of their files, so each save changes the disk after the earlier ones.
_newest: weakref.WeakKeyDictionary[Any, Save] = weakref.WeakKeyDictionary()
_NONE = object()  # stands for a missing value


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, and the training must not continue as if it were."""


class Replacing:
    """Proxy of an object of stock with some of its methods replaced.

    Args:
        target: The object that all other attributes are read from.
        methods: The methods that replace those of `target`, by name.
    """

    def __init__(self, target: Any, **methods: Callable[..., None]) -> None:
        self._target = target
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _HookState:
    """Records of a hook and its message hub about existing files, restored if a save fails.

    Other hooks may set the same keys of the hub during the save; their values are kept.
    """

    _all: weakref.WeakSet[_HookState] = weakref.WeakSet()

    def __init__(self, hook: Any, hub: Any) -> None:
        self._hook, self._hub = weakref.ref(hook), hub  # this may outlive a failed training
        self._attributes = {name: copy.copy(value) for name, value in self._attributes_of(hook)}
        self._infos = self._infos_of(hub)
        self._set: dict[str, Any] | None = None
        self._all.add(self)

    @staticmethod
    def _attributes_of(hook: Any) -> Iterator[tuple[str, Any]]:
        for name in ('keep_ckpt_ids', 'last_ckpt', 'best_ckpt_path', 'best_ckpt_path_dict'):
            if hasattr(hook, name):
                yield name, getattr(hook, name)

    @staticmethod
    def _infos_of(hub: Any) -> dict[str, Any]:
        own = ('keep_ckpt_ids', 'last_ckpt', 'best_score', 'best_ckpt')
        return {key: value for key, value in hub.runtime_info.items() if key.startswith(own)}

    def seal(self) -> None:
        """Record which entries the save has set; later entries are those of another hook."""
        now = self._infos_of(self._hub)
        self._set = {key: now[key] for key in now if now[key] is not self._infos.get(key, _NONE)}

    def restore(self) -> None:
        """Restore what the save has set, in the hook and in the hub."""
        for name, value in self._attributes.items():
            setattr(self._hook(), name, value)
        if self._set is None:
            self.seal()
        assert self._set is not None
        # A save that began after these entries were set must not restore them either.
        holders = [one._infos for one in self._all if one._hub is self._hub]
        for infos in [self._hub.runtime_info, *holders]:
            for key, value in self._set.items():
                if infos.get(key, _NONE) is not value:
                    continue
                if key in self._infos:
                    infos[key] = self._infos[key]
                else:
                    del infos[key]


class _FileGroup:
    """Files that are saved together, and that they replace.

    Args:
        hook_state: State of hook and hub before.
        waited: Seconds that the training waited for the previous save.
    """

    def __init__(self, hook_state: _HookState, waited: float) -> None:
        self.hook_state, self.waited = hook_state, waited
        self.files: list[tuple[str, dict]] = []
        self.old: list[str] = []
        self.marker: tuple[str, str] | None = None
        self.save: Save | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or (self.save is not None and self.save.is_done)

    def failure(self) -> tuple[str, BaseException] | None:
        """Return message and error of a finished save, or None if it succeeded."""
        error = self.error if self.save is None else self.save.error
        if error is None:
            return None
        names = ', '.join(osp.basename(path) for path, _ in self.files)
        return f'saving {names} failed: {error}', error


class CheckpointSaver:
    """Saves of one training, one at a time.

    Args:
        hook: Checkpoint hook that the files belong to.
        runner: Runner of the training.
        on_copying: Function to call when a save starts to copy the state. From then on,
            `await_copies` must be called before the state changes.
        overlaps: Whether parameters may be copied until `await_copies`. Defaults to True.
        timeout: Seconds that a save may take without progress. Defaults to 600.0.
    """

    def __init__(
        self,
        hook: Any,
        runner: Any,
        on_copying: Callable[[], None],
        overlaps: bool = True,
        timeout: float = 600.0,
    ) -> None:
        self._hook, self._runner, self._overlaps = hook, runner, overlaps
        self._on_copying = on_copying
        self._writer: DurableWriter | None = None
        if is_main_process():
            parameter = next(unwrapped(runner.model).parameters(), torch.empty(0))
            self._writer = DurableWriter(parameter.device, timeout, runner.logger.warning)
        self._open: _FileGroup | None = None
        # A relative `out_dir` names the folder that was checked, also after `os.chdir`.
        self._cwd = os.getcwd()
        self._running: list[_FileGroup] = []  # at most one
        self._failed: CheckpointError | None = None
        # No hook runs after a failure, so report at collection or interpreter exit.
        self._end = weakref.finalize(self, _finalize, self._writer, self._running, runner.logger)

    @property
    def is_busy(self) -> bool:
        """Whether a save is in progress."""
        return self._writer is not None and self._writer.is_busy

    @property
    def is_collecting(self) -> bool:
        """Whether the content of a save is being built."""
        return self._open is not None

    @property
    def has_ended(self) -> bool:
        """Whether a save has ended that is not reported yet."""
        return bool(self._running) and self._running[0].is_done

    def await_copies(self) -> bool:
        """Wait until the state may change; return whether to call this before the next change too.

        That is the case while a device copies asynchronously to the host.
        """
        if self._writer is None or not self._writer.is_copying:
            return False
        with charged_to('checkpoint: fence'):
            self._writer.await_copies()
        return self._writer.is_copying

    @contextmanager
    def group(self) -> Iterator[_FileGroup]:
        """Save the files that are added in this block together, in that order.

        If any of them fails, hook and message hub are restored as if none had been saved.
        """
        if self._open is not None:
            yield self._open
            return
        waited = self.wait()
        start = time.perf_counter()
        self._open = group = _FileGroup(_HookState(self._hook, self._runner.message_hub), waited)
        try:
            with charged_to('checkpoint: staging'):
                yield group
                group.hook_state.seal()
                if group.files:
                    self._submit(group)
            if group.save is not None:
                group.save.taken = time.perf_counter() - start
        except BaseException:
            group.hook_state.restore()
            raise
        finally:
            self._open = None

    def add(self, out_dir: str, filename: str, *_: Any, **options: Any) -> None:
        """Add a file to the open group; takes the arguments of `Runner.save_checkpoint`."""
        assert self._open is not None
        if self._writer is None:
            return
        for stock_only in ('file_client_args', 'backend_args'):
            options.pop(stock_only, None)
        path = self._hook.file_backend.join_path(out_dir, filename)
        folder = osp.join(self._cwd, out_dir)
        if osp.isdir(folder):  # an unmounted drive must not be replaced by a new folder
            with suppress(OSError):  # the writer reports the error
                os.makedirs(osp.join(folder, osp.dirname(filename)), exist_ok=True)
        content = checkpoint_of(self._runner, **options)
        self._open.files.append((path, content))

    def remove(self, path: str) -> None:
        """Remove a file once those of the open group are durable."""
        assert self._open is not None
        self._open.old.append(path)

    def report(self, is_last: bool = False) -> None:
        """Log a save that has ended, once.

        Args:
            is_last: Whether no save follows, so that a failure raises. Defaults to False.
        """
        if not self.has_ended:
            return
        group = self._running.pop()
        self._failed = None
        if group.save is not None:
            for line in describe(group.save, group.waited):
                self._runner.logger.info(line)
        failure = group.failure()
        if failure is None:
            for line in refusals(group.save):
                self._runner.logger.warning(line)
            return
        group.hook_state.restore()
        message, error = failure
        if isinstance(error, TornError):
            self._overlaps = False
            message += '; from now on checkpoints are copied before the training continues'
        message += '. The files before it are untouched'
        if isinstance(error, NonFiniteWeights) and error.ends_run:
            self._runner.logger.error(f'{message}.')  # WeightsCheck ends all processes
            return
        if is_last or self._hook.on_error == 'raise':
            raise CheckpointError(message) from error
        self._failed = CheckpointError(f'no save has succeeded since: {message}')
        self._failed.__cause__ = error
        self._runner.logger.error(
            f"{message}; the next save is at its usual time (on_error='raise' would stop here)."
        )

    def wait(self, is_last: bool = False) -> float:
        """Wait until the current save is durable, and report it; return the seconds waited.

        Args:
            is_last: Whether no save follows, so that a failure raises. Defaults to False.
        """
        with charged_to('checkpoint: wait for the writer'):
            waited = 0.0 if self._writer is None else self._writer.wait()
        self.report(is_last)
        if is_last and self._failed is not None:  # only logged before: a later save might succeed
            raise self._failed
        return waited

    def await_save(self) -> None:
        """Wait for the current save; if it fails, restore hook and message hub."""
        if self._writer is not None and self._open is None:
            with charged_to('checkpoint: wait for the writer'):
                self._writer.await_copies()
                self._writer.wait()
        for group in self._running:
            if group.is_done and group.failure() is not None:
                group.hook_state.restore()

    def close(self) -> None:
        """Wait for the writer, and stop it."""
        self._end.detach()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abandon(self) -> None:
        """Stop the writer at once; a save in progress is lost."""
        self._end.detach()
        if self._writer is not None:
            self._writer.abandon()

    def _submit(self, group: _FileGroup) -> None:
        assert self._writer is not None
        self._running.append(group)
        files = [(osp.join(self._cwd, path), content) for path, content in group.files]
        written = {path for path, _ in files}
        old = [osp.join(self._cwd, path) for path in group.old]
        remove = [path for path in old if path not in written]
        late: Collection[int] = changed_by_updates(self._runner) if self._overlaps else ()
        try:
            after, weights = _newest.get(self._runner), WeightsCheck.of(self._runner)
            check = None if weights is None else weights.of_copies(self._runner)
            group.save = self._writer.save(files, group.marker, remove, late, after, check)
            _newest[self._runner] = group.save
        except (OSError, MemoryError, RuntimeError) as error:
            group.error = error  # without memory for the copy the save fails, as on a full disk
        else:
            self._on_copying()
        group.files = [(path, {}) for path, _ in group.files]


def _finalize(writer: DurableWriter | None, running: list[_FileGroup], logger: Any) -> None:
    """Finish the current save, and log its failure."""
    if writer is not None:
        writer.close()
    for failure in [group.failure() for group in running]:
        if failure is not None:
            logger.error(f'{failure[0]}.')


def refusals(save: Save | None) -> Iterator[str]:
    """Yield a warning for each file of the first save that cannot be loaded again."""
    if save is None or not save.names:
        return
    for path in save.paths:
        reason = why_refused(path, save.names)
        if reason is not None:
            yield f'{reason}. --resume and load_from will refuse later files with this content too'


def describe(save: Save, waited: float) -> Iterator[str]:
    """Yield the lines of the log about a save that has ended.

    Args:
        save: The save.
        waited: Seconds that the training waited for the previous save.
    """
    if save.restarts:
        yield 'Checkpoint writer: the process had ended and was started again.'
    if save.fallback is not None:
        yield (
            f'Checkpoint writer: the process {save.fallback}; the training wrote this save itself.'
        )
    if save.error is None:
        names = ', '.join(osp.basename(path) for path in save.paths)
        blocked = {'snapshot': save.taken, 'fence': save.fenced, 'previous save': waited}
        parts = ', '.join(f'{name} {1e3 * seconds:.0f}' for name, seconds in blocked.items())
        yield (
            f'Saved {names}: {size(save.written)}, copied in {duration(save.staged)}, written and '
            f'synced in {duration(save.seconds)} ({size(save.written / save.seconds)}/s). '
            f'Training blocked {1e3 * sum(blocked.values()):.0f} ms ({parts}).'
        )
    for path, reason in save.kept:
        yield f'{path} could not be removed: {reason}.'
