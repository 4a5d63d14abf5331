"""Writes checkpoints in the background, so that each is on the disk whole or not at all."""

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

from . import writer_process
from .archive import names_in, records_of
from .disk_space import remove_leftovers
from .host_buffer import HostBuffer
from .save import Save
from .snapshot import Snapshot
from .stall_limit import StallLimit
from .writer_client import DEAD, WriterClient

# The training has hooks to leave before it computes without Python's lock; let it.
GRACE = 0.003
# Seconds between two messages of what is waited for.
TELL_EVERY = 30.0
# Bytes a second. A sync of a whole file reports no progress: a disk may be as slow as this.
SLOWEST = 1e7


class WriterDied(RuntimeError):
    """The writer process was ended during a save that is not wanted any more."""


class DurableWriter:
    """Takes a snapshot and has it written by another process; one save at a time.

    ::

        writer.save([(path, tree)], marker=(path, text), remove=[path])
        writer.fence()    before anything of the state changes
        writer.wait()     until nothing is on its way
        writer.close()    waits as well; the end of the interpreter does it too

    Each file is written under a temporary name, synced and renamed; then the marker in the same
    way. Removals come last, when all of that is durable.

    The process is started here, and replaced by `save` if it has died, both of which belong in
    the main thread: see `WriterClient`. If it dies during a save, this process writes the files.
    Every wait ends: a process that makes no progress is killed, and then this process writes; if
    that makes no progress either, the save fails with a TimeoutError.

    Args:
        device: Where the state lies. Defaults to 'cpu'.
        timeout: Seconds that a save may take without any progress. Defaults to 600.0.
        warn: Called with a line of text while something is waited for, `warnings.warn` unless
            given.
    """

    def __init__(
        self,
        device: torch.device | str = 'cpu',
        timeout: float = 600.0,
        warn: Callable[[str], Any] = warnings.warn,
    ) -> None:
        self._area = HostBuffer(device)
        self._snapshot = Snapshot(self._area)
        self._worker = self._new_worker(timeout, warn)
        # Also at the end of the interpreter, however that came about.
        self._end = weakref.finalize(self, self._worker.close)
        self._last: Save | None = None

    def _new_worker(self, timeout: float, warn: Callable[[str], Any]) -> _Worker:
        worker = _Worker(self._area, self._snapshot, timeout, warn)
        worker.start()
        return worker

    @property
    def is_busy(self) -> bool:
        return self._last is not None and not self._last.is_done

    @property
    def is_copying(self) -> bool:
        """Whether a `fence` may have something to wait for."""
        return not self._snapshot.is_staged

    def save(
        self,
        files: list[tuple[str, Any]],
        marker: tuple[str, str] | None = None,
        remove: Collection[str] = (),
        late: Collection[int] = (),
        after: Save | None = None,
        check: Callable[[list], None] | None = None,
    ) -> Save:
        """Start to save; waits for the save before.

        Args:
            files: Path and content of each.
            marker: Path and text of a small file that names them. Defaults to None.
            remove: What they replace. Defaults to ().
            late: Addresses of tensors that nothing changes before the next `fence`.
                Defaults to ().
            after: A save of another writer, to be complete before this one changes the disk.
                Defaults to None.
            check: Called in the writer's thread with the copied contents, before anything is
                written or removed; what it raises fails the save. Defaults to None.
        """
        if not self._end.alive:
            raise RuntimeError('the writer is closed')
        self.wait()
        save = Save([path for path, _ in files])
        self._worker.prepare(save)
        trees = self._snapshot.take([tree for _, tree in files], late)
        self._worker.give(save, trees, marker, list(remove), after, check)
        self._last = save
        return save

    def fence(self) -> None:
        """Return when the state may change."""
        if self._last is not None:
            self._last.fenced += self._snapshot.fence()

    def wait(self) -> float:
        """Until nothing is on its way; the seconds it took."""
        start = time.perf_counter()
        if self._last is not None:
            self._worker.wait(self._last)
        return time.perf_counter() - start

    def close(self) -> None:
        """Finish what is on its way, and end the process."""
        self._end()

    def abandon(self) -> None:
        """End the process at once, whatever is on its way."""
        self._end.detach()
        self._worker.kill()


class _Worker:
    """The thread that copies what is late, and talks to the process."""

    def __init__(
        self,
        area: HostBuffer,
        snapshot: Snapshot,
        timeout: float,
        warn: Callable[[str], Any],
    ) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._area, self._snapshot = area, snapshot
        self._timeout, self._warn = timeout, warn
        self._process: WriterClient | None = None
        self._asked: WriterClient | None = None  # while it has a job
        self._why_none = ''  # why there is no process
        self._has_died = self._abandoned = self._has_named = False
        self._save: Save | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the process; without one, this process writes."""
        try:
            self._process = WriterClient()
        except OSError as error:
            self._why_none = f'could not be started ({error})'

    def prepare(self, save: Save) -> None:
        """Have a process that lives, before a save."""
        if not self._idle.is_set():
            raise TimeoutError('an earlier save is still stuck in a write to its disk')
        if self._process is not None and self._process.has_ended:
            self._stop_process()
        if self._process is None:
            self.start()
            if self._process is not None:
                save.restarts, self._has_died = int(self._has_died), False

    def give(self, save: Save, *job: Any) -> None:
        if self._thread is None:
            thread = HelperThread('writer', self._run)
            thread.start()
            self._thread = thread  # not one that could not be started
        self._save = save
        self._idle.clear()
        self._jobs.put((save, *job))

    def wait(self, save: Save) -> None:
        """Until a save has ended, in whatever way."""
        self._wait(save.wait, save)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked data loader has a copy of this, but no thread
        self._end()
        thread, save = self._thread, self._save
        # As garbage, the writer may be collected in that thread.
        if thread is None or save is None or thread is threading.current_thread():
            return

        def has_ended(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        self._wait(has_ended, save)

    def kill(self) -> None:
        self._abandoned = True
        process = self._process
        if process is not None:
            process.kill()
        self._end()

    def _end(self) -> None:
        if self._thread is None:
            self._stop_process()
            self._area.close()
        else:
            self._jobs.put(None)

    def _wait(self, has_ended: Callable[[float], bool], save: Save) -> None:
        """Until `has_ended`; without progress, first without the process, then not at all.

        Args:
            has_ended: Waits for at most the given seconds.
            save: Whose progress counts.
        """
        limit = StallLimit(self._timeout + self._area.size / SLOWEST)
        start = time.monotonic()
        while not has_ended(min(TELL_EVERY, limit.seconds / 2)):
            names = ', '.join(os.path.basename(path) for path in save.paths)
            at = f'{names}: {save.written / 1e6:.0f} MB written'
            if not limit.is_reached(save.progress):
                seconds = time.monotonic() - start
                self._warn(f'checkpoint writer: waiting since {seconds:.0f} s for {at}.')
                continue
            stalled = f'no progress for {limit.seconds:.0f} s ({at})'
            process = self._asked
            if process is None or process.is_killed:
                save.end(TimeoutError(stalled))
                return
            self._warn(
                f'checkpoint writer: {stalled}; its process is killed, and the training process '
                'writes the files.'
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
            except BaseException as found:
                traceback.clear_frames(found.__traceback__)  # they hold the copies
                error = found
            finally:
                del job
                self._idle.set()
                save.end(error)
                del save, error
        self._stop_process()
        self._area.close()

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
        records = [records_of(tree, self._area) for tree in trees]
        if not self._has_named:
            save.names = frozenset().union(*map(names_in, records))
        job = dict(
            area=self._area.address,
            files=list(zip(save.paths, records)),
            marker=marker,
            remove=remove,
        )
        if after is not None:
            save._after = after
            after.wait()
            save._after = None
            if save.is_done:  # given up in the meantime: hook and hub name the older files
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
        """Have the process do a job; if it dies, do it here: a thread starts no process."""
        process = self._asked = self._process
        if process is not None:
            try:
                return process.ask(job, save.report)
            except DEAD:
                process.kill()  # two processes must not write the same files
                self._stop_process()
                self._remove_leftovers([*save.paths, *(job['marker'] or ())[:1]])
            finally:
                self._asked = None
        if self._abandoned:
            raise WriterDied(f'the writer process {self._why_none}, and the save was given up')
        if save.is_done:
            raise WriterDied(f'the writer process {self._why_none}, after the save was given up')
        save.fallback = self._why_none
        save.report(0)
        return writer_process.do(job, self._area.memory, save.report)

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
