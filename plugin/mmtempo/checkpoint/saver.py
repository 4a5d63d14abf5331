"""From what stock's code decides to save, to what a durable writer is given."""

from __future__ import annotations

import os
import os.path as osp
import time
import weakref
from collections import deque
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

from .content import changed_by_updates, checkpoint_of
from .finite_weights import NonFiniteWeights
from .loading import why_refused
from .weights_check import WeightsCheck

# Of each runner, whichever hook began it. Several hooks share a marker, which has to name the
# newest of their files, so each save changes the disk after the earlier ones.
_newest: weakref.WeakKeyDictionary[Any, Save] = weakref.WeakKeyDictionary()


_NONE = object()  # in the place of a value that is not there


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, and the training must not go on as if it were."""


class DeferredRemovals:
    """A file backend that notes what is to be removed; stock removes before it has saved.

    Args:
        backend: Answers everything else.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._noted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self._noted.append(path)

    rmtree = remove

    def take(self) -> list[str]:
        """What was noted since the last time."""
        noted, self._noted = self._noted, []
        return noted


class SavingRunner:
    """A runner, but for one thing: what it saves goes to `save`.

    Args:
        runner: Everything else.
        save: Takes the arguments of `Runner.save_checkpoint`.
    """

    def __init__(self, runner: Any, save: Callable[..., None]) -> None:
        self._runner = runner
        self.save_checkpoint = save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class _HookState:
    """What hook and hub know about the files that are there, to be put back if a save fails.

    Other hooks may set the same keys of the hub meanwhile; their values stay.
    """

    _all: weakref.WeakSet[_HookState] = weakref.WeakSet()

    def __init__(self, hook: Any, hub: Any) -> None:
        self._hook, self._hub = weakref.ref(hook), hub  # it may outlive a training that failed
        self._attributes = {name: _copied(value) for name, value in self._attributes_of(hook)}
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
        """Note what the save has set; what is set later is another hook's."""
        now = self._infos_of(self._hub)
        self._set = {key: now[key] for key in now if now[key] is not self._infos.get(key, _NONE)}

    def put_back(self) -> None:
        for name, value in self._attributes.items():
            setattr(self._hook(), name, value)
        if self._set is None:
            self.seal()
        assert self._set is not None
        # Also where another save may put them back, which began when they were set.
        holders = [one._infos for one in self._all if one._hub is self._hub]
        for infos in [self._hub.runtime_info, *holders]:
            for key, value in self._set.items():
                if infos.get(key, _NONE) is not value:
                    continue
                if key in self._infos:
                    infos[key] = self._infos[key]
                else:
                    del infos[key]


def _copied(value: Any) -> Any:
    if isinstance(value, deque):
        return deque(value, value.maxlen)
    return dict(value) if isinstance(value, dict) else value


class _Batch:
    """Files that are saved together."""

    def __init__(self, books: _HookState, waited: float) -> None:
        self.books, self.waited = books, waited
        self.files: list[tuple[str, dict]] = []
        self.marker: tuple[str, str] | None = None
        self.save: Save | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or (self.save is not None and self.save.is_done)

    def failure(self) -> tuple[str, BaseException] | None:
        """What went wrong, when it is done; None where nothing did."""
        error = self.error if self.save is None else self.save.error
        if error is None:
            return None
        names = ', '.join(osp.basename(path) for path, _ in self.files)
        return f'saving {names} failed: {error}', error


class CheckpointSaver:
    """The saves of one training, one at a time.

    Args:
        hook: Whose files they are; its `file_backend` is replaced until `close`.
        runner: The training.
        on_copying: Called when a save begins to copy the state: from now on, `fence` is to be
            called before a change.
        overlaps: Whether parameters may be copied until the next fence. Defaults to True.
        timeout: Seconds that a save may take without any progress. Defaults to 600.0.
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
        hook.file_backend = self._files = DeferredRemovals(hook.file_backend)
        self._writer: DurableWriter | None = None
        if is_main_process():
            parameter = next(unwrapped(runner.model).parameters(), torch.empty(0))
            self._writer = DurableWriter(parameter.device, timeout, runner.logger.warning)
        self._open: _Batch | None = None
        # A relative `out_dir` means the folder that was checked, also after `os.chdir`.
        self._cwd = os.getcwd()
        self._running: list[_Batch] = []  # one at most
        self._failed: CheckpointError | None = None
        # Of a training that ended with an error nobody asks any more.
        self._end = weakref.finalize(self, _tell, self._writer, self._running, runner.logger)

    @property
    def is_busy(self) -> bool:
        return self._writer is not None and self._writer.is_busy

    @property
    def is_collecting(self) -> bool:
        """Whether the content of a save is put together now."""
        return self._open is not None

    @property
    def has_ended(self) -> bool:
        """Whether a save has ended and is not reported yet."""
        return bool(self._running) and self._running[0].is_done

    def fence(self) -> bool:
        """Return when the state may change, and whether this must be called before the next change.

        With a device that copies while the host goes on, it must.
        """
        if self._writer is None or not self._writer.is_copying:
            return False
        with charged_to('checkpoint: fence'):
            self._writer.fence()
        return self._writer.is_copying

    @contextmanager
    def batch(self) -> Iterator[_Batch]:
        """What is collected inside is written in that order, and stands or falls together."""
        if self._open is not None:
            yield self._open
            return
        waited = self.wait()
        start = time.perf_counter()
        self._files.take()
        self._open = batch = _Batch(_HookState(self._hook, self._runner.message_hub), waited)
        try:
            with charged_to('checkpoint: staging'):
                yield batch
                batch.books.seal()
                if batch.files:
                    self._submit(batch)
            if batch.save is not None:
                batch.save.taken = time.perf_counter() - start
        except BaseException:
            batch.books.put_back()
            raise
        finally:
            self._open = None

    def add(self, out_dir: str, filename: str, *_: Any, **options: Any) -> None:
        """As `Runner.save_checkpoint`, but that the file is written with the others."""
        assert self._open is not None
        if self._writer is None:
            return
        for stock_only in ('file_client_args', 'backend_args'):
            options.pop(stock_only, None)
        path = self._files.join_path(out_dir, filename)
        folder = osp.join(self._cwd, out_dir)
        if osp.isdir(folder):  # a mount that vanishes must not become a folder
            with suppress(OSError):  # the writer reports it
                os.makedirs(osp.join(folder, osp.dirname(filename)), exist_ok=True)
        content = checkpoint_of(self._runner, overlaps=self._overlaps, **options)
        self._open.files.append((path, content))

    def report(self, is_last: bool = False) -> None:
        """Report a save that has ended, once."""
        if not self.has_ended:
            return
        batch = self._running.pop()
        self._failed = None
        if batch.save is not None:
            for line in describe(batch.save, batch.waited):
                self._runner.logger.info(line)
        failure = batch.failure()
        if failure is None:
            for line in refusals(batch.save):
                self._runner.logger.warning(line)
            return
        batch.books.put_back()
        message, error = failure
        if isinstance(error, TornError):
            self._overlaps = False
            message += '; from now on checkpoints are copied before the training goes on'
        message += '. The files before it are untouched'
        if isinstance(error, NonFiniteWeights) and error.ends_run:
            self._runner.logger.error(f'{message}.')  # all processes end at once: WeightsCheck
            return
        if is_last or self._hook.on_error == 'raise':
            raise CheckpointError(message) from error
        self._failed = CheckpointError(f'no save has succeeded since: {message}')
        self._failed.__cause__ = error
        self._runner.logger.error(
            f"{message}; the next save is at its usual time (on_error='raise' would stop here)."
        )

    def wait(self, is_last: bool = False) -> float:
        """Until what is on its way is durable, and reported; the seconds it took."""
        with charged_to('checkpoint: wait for the writer'):
            waited = 0.0 if self._writer is None else self._writer.wait()
        self.report(is_last)
        if is_last and self._failed is not None:  # it was seen while there might have been more
            raise self._failed
        return waited

    def await_save(self) -> None:
        """Wait for the save on its way; where it fails, hook and hub name the files before it."""
        if self._writer is not None and self._open is None:
            with charged_to('checkpoint: wait for the writer'):
                self._writer.fence()
                self._writer.wait()
        for batch in self._running:
            if batch.is_done and batch.failure() is not None:
                batch.books.put_back()

    def close(self) -> None:
        self._end.detach()
        self._hook.file_backend = self._files.backend
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abandon(self) -> None:
        """Leave at once, whatever is on its way."""
        self._end.detach()
        if self._writer is not None:
            self._writer.abandon()

    def _submit(self, batch: _Batch) -> None:
        assert self._writer is not None
        self._running.append(batch)
        files = [(osp.join(self._cwd, path), content) for path, content in batch.files]
        written = {path for path, _ in files}
        noted = [osp.join(self._cwd, path) for path in self._files.take()]
        remove = [path for path in noted if path not in written]
        late: Collection[int] = changed_by_updates(self._runner) if self._overlaps else ()
        try:
            after, weights = _newest.get(self._runner), WeightsCheck.of(self._runner)
            check = None if weights is None else weights.of_copies(self._runner)
            batch.save = self._writer.save(files, batch.marker, remove, late, after, check)
            _newest[self._runner] = batch.save
        except (OSError, MemoryError, RuntimeError) as error:
            batch.error = error  # no memory for the copy: as bad as no room on the disk
        else:
            self._on_copying()
        batch.files = [(path, {}) for path, _ in batch.files]


def _tell(writer: DurableWriter | None, running: list[_Batch], logger: Any) -> None:
    """What is on its way becomes durable, or it is said that it did not."""
    if writer is not None:
        writer.close()
    for failure in [batch.failure() for batch in running]:
        if failure is not None:
            logger.error(f'{failure[0]}.')


def refusals(save: Save | None) -> Iterator[str]:
    """Yield which of the first files cannot be loaded again, and why."""
    if save is None or not save.names:
        return
    for path in save.paths:
        reason = why_refused(path, save.names)
        if reason is not None:
            yield f'{reason}. --resume and load_from refuse later files with this content as well'


def describe(save: Save, waited: float) -> Iterator[str]:
    """What a save has cost, and what else there is to say."""
    if save.restarts:
        yield 'The process that writes checkpoints had died, and was started again.'
    if save.fallback is not None:
        yield (
            f'The process that writes checkpoints {save.fallback}: the training process took over '
            'this save.'
        )
    if save.error is None:
        names = ', '.join(osp.basename(path) for path in save.paths)
        held = save.taken + save.fenced + waited
        yield (
            f'Saved {names}: {save.written / 1e6:.0f} MB, copied in {1e3 * save.staged:.0f} ms, '
            f'written and synced in {save.seconds:.2f} s '
            f'({save.written / 1e6 / save.seconds:.0f} MB/s). It held the training up for '
            f'{1e3 * held:.0f} ms: {1e3 * save.taken:.0f} to begin, {1e3 * save.fenced:.0f} until '
            f'it was copied, {1e3 * waited:.0f} for the save before.'
        )
    for path, reason in save.kept:
        yield f'{path} could not be removed: {reason}.'
