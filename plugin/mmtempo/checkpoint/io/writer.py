"""Asynchronous writer of checkpoints, of which each is complete on disk or not there at all."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch

from mmtempo.utils.threads import HelperThread
from mmtempo.utils.units import duration, size

from . import writer_process
from .archive import names_in, records_of
from .disk_space import remove_leftovers
from .host_buffer import HostBuffer
from .save import Save
from .snapshot import Snapshot
from .stall_limit import StallLimit
from .writer_client import DEAD, WriterClient

# Seconds before the thread starts to copy: the training first needs the GIL to leave its hooks.
GRACE = 0.003
# Seconds between two warnings about a save that is waited for.
WARN_EVERY = 30.0
# Bytes per second of the slowest disk: the sync of a file reports no progress until it is done.
SLOWEST = 1e7


class WriterDied(RuntimeError):
    """The writer process ended during a save that had been given up."""


class DurableWriter:
    """A writer that takes a snapshot and has another process write it; one save at a time.

    ::

        writer.save([(path, tree)], marker=(path, text), remove=[path])
        writer.await_copies()    before anything of the state changes
        writer.wait()            until the save is durable
        writer.close()           waits as well; called at interpreter exit, too

    Each file is written under a temporary name, synced and renamed; then the marker in the same
    way. Files are removed last, when all of that is durable.

    The process is started by the constructor, and restarted by `save` if it has died; call both
    in the main thread only, see `WriterClient`. If the process dies during a save, this process
    writes the files. Every wait ends: a process that makes no progress is killed, and this
    process writes the files; if that makes no progress either, the save fails with TimeoutError.

    Args:
        device: Device of the state. Defaults to 'cpu'.
        timeout: Seconds that a save may take without progress, in addition to the time that a
            slow disk needs to sync it. Defaults to 600.0.
        warn: Called with a line of text while a save is waited for; `warnings.warn` unless given.
    """

    def __init__(
        self,
        device: torch.device | str = 'cpu',
        timeout: float = 600.0,
        warn: Callable[[str], Any] = warnings.warn,
    ) -> None:
        self._buffer = HostBuffer(device)
        self._snapshot = Snapshot(self._buffer)
        self._thread = _WriterThread(self._buffer, self._snapshot, timeout, warn)
        self._thread.start_process()
        # Runs at interpreter exit as well, for any reason of the exit.
        self._end = weakref.finalize(self, self._thread.close)
        self._last: Save | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save has not ended yet."""
        return self._last is not None and not self._last.is_done

    @property
    def is_copying(self) -> bool:
        """Whether the state is not copied completely, so that `await_copies` may wait."""
        return not self._snapshot.is_copied

    def save(
        self,
        files: list[tuple[str, Any]],
        marker: tuple[str, str] | None = None,
        remove: Collection[str] = (),
        late: Collection[int] = (),
        after: Save | None = None,
        check: Callable[[list], None] | None = None,
    ) -> Save:
        """Wait for the previous save, then start another.

        Args:
            files: Path and content of each file.
            marker: Path and text of a small file that names them. Defaults to None.
            remove: Paths of the files that they replace. Defaults to ().
            late: Addresses of tensors that do not change before `await_copies`. Defaults to ().
            after: Save of another writer, which ends before this one changes the disk.
                Defaults to None.
            check: Called in the writer thread with the copied contents, before anything is
                written or removed; an exception that it raises fails the save. Defaults to None.
        """
        if not self._end.alive:
            raise RuntimeError('the writer is closed')
        self.wait()
        save = Save([path for path, _ in files])
        self._thread.prepare(save)
        trees = self._snapshot.take([tree for _, tree in files], late)
        self._thread.submit(save, trees, marker, list(remove), after, check)
        self._last = save
        return save

    def await_copies(self) -> None:
        """Wait until the state may change; the save counts the time."""
        if self._last is not None:
            self._last.fenced += self._snapshot.await_copies()

    def wait(self) -> float:
        """Wait until the save has ended; return the seconds for which this waited."""
        start = time.perf_counter()
        if self._last is not None:
            self._thread.wait(self._last)
        return time.perf_counter() - start

    def close(self) -> None:
        """Complete the save, and end the process."""
        self._end()

    def abandon(self) -> None:
        """End the process at once, also during a save."""
        self._end.detach()
        self._thread.kill()


class _WriterThread:
    """The thread that copies late tensors and communicates with the process.

    Args:
        buffer: Buffer that the snapshot copies to; closed by the thread at its end.
        snapshot: Snapshot that `DurableWriter.save` has taken.
        timeout: As of `DurableWriter`.
        warn: As of `DurableWriter`.
    """

    def __init__(
        self,
        buffer: HostBuffer,
        snapshot: Snapshot,
        timeout: float,
        warn: Callable[[str], Any],
    ) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._buffer, self._snapshot = buffer, snapshot
        self._timeout, self._warn = timeout, warn
        self._process: WriterClient | None = None
        self._working: WriterClient | None = None  # the process while it has a job
        self._why_none = ''  # reason for which there is no process
        self._has_died = self._is_abandoned = self._has_named = False
        self._save: Save | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    def start_process(self) -> None:
        """Start the process; if that fails, this process writes the files."""
        try:
            self._process = WriterClient()
        except OSError as error:
            self._why_none = f'could not be started ({error})'

    def prepare(self, save: Save) -> None:
        """Restart the process before a save if it has died."""
        if not self._idle.is_set():
            raise TimeoutError(
                'an earlier save is still blocked in a write to its disk; check that the disk '
                'responds'
            )
        if self._process is not None and self._process.has_ended:
            self._stop_process()
        if self._process is None:
            self.start_process()
            if self._process is not None:
                save.restarts, self._has_died = int(self._has_died), False

    def submit(self, save: Save, *job: Any) -> None:
        """Have the thread do a save."""
        if self._thread is None:
            thread = HelperThread('writer', self._run)
            thread.start()
            self._thread = thread  # only if it could be started
        self._save = save
        self._idle.clear()
        self._jobs.put((save, *job))

    def wait(self, save: Save) -> None:
        """Wait until a save has ended, with or without an error."""
        self._wait(save.wait, save)

    def close(self) -> None:
        """Complete the save, end thread and process, and release the buffer."""
        if os.getpid() != self._owner:
            return  # a forked data loader worker has a copy of this object, but not the thread
        self._end()
        thread, save = self._thread, self._save
        # The garbage collector may finalize the writer in that thread, which cannot join itself.
        if thread is None or save is None or thread is threading.current_thread():
            return

        def has_ended(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        self._wait(has_ended, save)

    def kill(self) -> None:
        """Kill the process, and let the thread end without waiting for it."""
        self._is_abandoned = True
        process = self._process
        if process is not None:
            process.kill()
        self._end()

    def _end(self) -> None:
        if self._thread is None:
            self._stop_process()
            self._buffer.close()
        else:
            self._jobs.put(None)

    def _wait(self, has_ended: Callable[[float], bool], save: Save) -> None:
        """Wait until `has_ended`; without progress, first kill the process, then fail the save.

        Args:
            has_ended: Function that waits for at most the given seconds.
            save: Save whose progress counts.
        """
        limit = StallLimit(self._timeout + self._buffer.size / SLOWEST)
        start = time.monotonic()
        while not has_ended(min(WARN_EVERY, limit.seconds / 2)):
            names = ', '.join(os.path.basename(path) for path in save.paths)
            written = f'{size(save.written)} written'
            if not limit.is_reached(save.progress):
                waited = duration(time.monotonic() - start)
                self._warn(f'checkpoint writer: waiting for {names} ({waited} so far, {written})')
                continue
            stalled = f'no progress of {names} for {duration(limit.seconds)} ({written})'
            process = self._working
            if process is None or process.is_killed:
                save.end(TimeoutError(stalled))
                return
            self._warn(
                f'checkpoint writer: {stalled}; the writer process is killed, and the training '
                'process writes the files'
            )
            process.kill()
            limit.restart()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                break
            save = job[0]
            error: BaseException | None = None
            try:
                self._do(*job)
            except BaseException as raised:
                traceback.clear_frames(raised.__traceback__)  # the frames refer to the copies
                error = raised
            finally:
                del job
                self._idle.set()
                save.end(error)
                del save, error
        self._stop_process()
        self._buffer.close()

    def _do(
        self,
        save: Save,
        trees: list,
        marker: Any,
        remove: list[str],
        after: Save | None,
        check: Callable[[list], None] | None,
    ) -> None:
        time.sleep(GRACE)
        start = time.perf_counter()
        self._snapshot.finish()
        save.staged = time.perf_counter() - start
        if check is not None:
            check(trees)
        records = [records_of(tree, self._buffer) for tree in trees]
        if not self._has_named:
            save.names = frozenset().union(*map(names_in, records))
        job = dict(
            buffer=self._buffer.address,
            files=list(zip(save.paths, records)),
            marker=marker,
            remove=remove,
        )
        if after is not None:
            save._after = after
            after.wait()
            save._after = None
            # If the save was given up in the meantime, hook and hub name the older files again.
            if save.is_done:
                return
        start = time.perf_counter()
        answer = self._ask(job, save)
        save.seconds = time.perf_counter() - start
        if answer['error'] is not None:
            name, number, text, path = answer['error']
            raise OSError(number, text, path) if number else OSError(f'{path}: {name}: {text}')
        save.written, save.kept = answer['written'], answer['kept']
        self._has_named = True

    def _ask(self, job: dict, save: Save) -> dict:
        """Have the process do a job. If it dies, do the job here: a thread starts no process."""
        process = self._working = self._process
        if process is not None:
            try:
                return process.ask(job, save.report)
            except DEAD:
                process.kill()  # two processes must not write the same files
                self._stop_process()
                self._remove_leftovers([*save.paths, *(job['marker'] or ())[:1]])
            finally:
                self._working = None
        if self._is_abandoned or save.is_done:
            raise WriterDied(f'the writer process {self._why_none}, and the save was given up')
        save.fallback = self._why_none
        save.report(0)
        return writer_process.do(job, self._buffer.memory, save.report)

    @staticmethod
    def _remove_leftovers(paths: list[str]) -> None:
        for folder in {os.path.dirname(path) or '.' for path in paths}:
            with contextlib.suppress(OSError):
                remove_leftovers(folder)

    def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._why_none = f'ended with exit code {process.close()}'
            self._has_died = True
