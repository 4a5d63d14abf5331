"""From what stock's code decides to save, to what a durable writer is given."""

from __future__ import annotations

import os.path as osp
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.dist import is_main_process

from ..core.durable_writer import DurableWriter, Save
from ..core.snapshot import TornError
from .checkpoint_content import changed_by_updates, checkpoint_of, unwrapped


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, and the training must not go on as if it were."""


class DeferredRemovals:
    """A file backend that notes what is to be removed; stock removes before it has saved.

    Args:
        backend: Answers everything else.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._noted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

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


class _Books:
    """What hook and hub know about the files that are there, to be put back if a save fails."""

    def __init__(self, hook: Any, hub: Any) -> None:
        self._hook, self._hub = hook, hub
        self._attributes = {name: _copied(value) for name, value in self._attributes_of(hook)}
        self._infos = {key: hub.runtime_info[key] for key in self._keys_of(hub)}

    @staticmethod
    def _attributes_of(hook: Any) -> Iterator[tuple[str, Any]]:
        for name in ('keep_ckpt_ids', 'last_ckpt', 'best_ckpt_path', 'best_ckpt_path_dict'):
            if hasattr(hook, name):
                yield name, getattr(hook, name)

    @staticmethod
    def _keys_of(hub: Any) -> list[str]:
        own = ('keep_ckpt_ids', 'last_ckpt', 'best_score', 'best_ckpt')
        return [key for key in hub.runtime_info if key.startswith(own)]

    def put_back(self) -> None:
        for name, value in self._attributes.items():
            setattr(self._hook, name, value)
        for key in self._keys_of(self._hub):
            self._hub.runtime_info.pop(key)
        self._hub.runtime_info.update(self._infos)


def _copied(value: Any) -> Any:
    if isinstance(value, deque):
        return deque(value, value.maxlen)
    return dict(value) if isinstance(value, dict) else value


class _Batch:
    """Files that are saved together."""

    def __init__(self, books: _Books, waited: float) -> None:
        self.books, self.waited = books, waited
        self.files: list[tuple[str, dict]] = []
        self.marker: tuple[str, str] | None = None
        self.save: Save | None = None
        self.error: BaseException | None = None


class CheckpointSaving:
    """The saves of one training, one at a time.

    Args:
        hook: Whose files they are; its `file_backend` is replaced.
        runner: The training.
    """

    def __init__(self, hook: Any, runner: Any) -> None:
        self._hook, self._runner = hook, runner
        hook.file_backend = self._files = DeferredRemovals(hook.file_backend)
        self._writer: DurableWriter | None = None
        if is_main_process():
            parameter = next(unwrapped(runner.model).parameters(), torch.empty(0))
            self._writer = DurableWriter(parameter.device)
        self._overlaps = True
        self._open: _Batch | None = None
        self._running: _Batch | None = None

    @property
    def is_busy(self) -> bool:
        return self._writer is not None and self._writer.is_busy

    def fence(self) -> None:
        """Return when the state may change."""
        if self._writer is not None:
            self._writer.fence()

    @contextmanager
    def together(self) -> Iterator[_Batch]:
        """What is collected inside is written in that order, and stands or falls together."""
        if self._open is not None:
            yield self._open
            return
        waited = self.finish()
        self._files.take()
        self._open = batch = _Batch(_Books(self._hook, self._runner.message_hub), waited)
        try:
            yield batch
            if batch.files:
                self._submit(batch)
        except BaseException:
            batch.books.put_back()
            raise
        finally:
            self._open = None

    def collect(self, out_dir: str, filename: str, *_: Any, **options: Any) -> None:
        """As `Runner.save_checkpoint`, but that the file is written with the others."""
        assert self._open is not None
        if self._writer is None:
            return
        for stock_only in ('file_client_args', 'backend_args'):
            options.pop(stock_only, None)
        path = self._files.join_path(out_dir, filename)
        self._open.files.append((path, checkpoint_of(self._runner, **options)))

    def settle(self, is_last: bool = False) -> None:
        """Report a save that has ended, once."""
        batch = self._running
        if batch is None or not (batch.error or batch.save is None or batch.save.is_done):
            return
        self._running = None
        save, error = batch.save, batch.error
        if save is not None:
            error = save.error
            for line in describe(save, batch.waited):
                self._runner.logger.info(line)
        if error is None:
            return
        batch.books.put_back()
        names = ', '.join(osp.basename(path) for path, _ in batch.files)
        message = f'saving {names} failed: {error}'
        if isinstance(error, TornError):
            self._overlaps = False
            message += '; from now on checkpoints are copied before the training goes on'
        if is_last or self._hook.on_error == 'raise':
            raise CheckpointError(f'{message}. The files before it are untouched') from error
        self._runner.logger.error(
            f'{message}. The files before it are untouched; the next save is at its usual time '
            "(on_error='raise' would stop here)."
        )

    def finish(self, is_last: bool = False) -> float:
        """Until what is on its way is durable, and reported; the seconds it took."""
        waited = 0.0 if self._writer is None else self._writer.wait()
        self.settle(is_last)
        return waited

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def abandon(self) -> None:
        """Leave at once, whatever is on its way."""
        if self._writer is not None:
            self._writer.abandon()

    def _submit(self, batch: _Batch) -> None:
        assert self._writer is not None
        self._running = batch
        late = changed_by_updates(self._runner) if self._overlaps else ()
        try:
            batch.save = self._writer.save(batch.files, batch.marker, self._files.take(), late)
        except (OSError, MemoryError, RuntimeError) as error:
            batch.error = error  # no memory for the copy: as bad as no room on the disk
        batch.files = [(path, {}) for path, _ in batch.files]


def describe(save: Save, waited: float) -> Iterator[str]:
    """What a save has cost, and what else there is to say."""
    if save.restarts:
        yield 'The process that writes checkpoints had died, and was started again.'
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
