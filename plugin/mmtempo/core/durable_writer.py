"""Writes checkpoints in the background, so that each is on the disk whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import zlib_ng

from . import writer_process
from .archive import records_of
from .snapshot import Snapshot
from .staging import StagingArea
from .threads import HelperThread

# The training has hooks to leave before it computes without Python's lock; let it.
GRACE = 0.003


class WriterDied(RuntimeError):
    """The writing process ended without an answer, and so did the one started in its place."""


@dataclass
class Save:
    """What became of one save: files, marker and removals together.

    Attributes:
        paths: The files, in the order they are written.
        taken: Seconds that the training spent on starting it, as its owner has found.
        fenced: Seconds that the training waited until its state was copied.
        staged: Seconds until its state was copied.
        written: Bytes of the files.
        seconds: What writing and syncing took.
        restarts: How many times the writing process had to be started again.
        kept: Old files that could not be removed, and why.
        error: Why it failed; None where it did not.
    """

    paths: list[str]
    taken: float = 0.0
    fenced: float = 0.0
    staged: float = 0.0
    written: int = 0
    seconds: float = 0.0
    restarts: int = 0
    kept: list[tuple[str, str]] = field(default_factory=list)
    error: BaseException | None = None
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()


class DurableWriter:
    """Takes a snapshot and has it written by a process of its own; one save at a time.

    ::

        writer.save([(path, tree)], marker=(path, text), remove=[path])
        writer.fence()    before anything of the state changes
        writer.wait()     until nothing is on its way
        writer.close()    waits as well; the end of the interpreter does it too

    Files are written beside their place, synced and renamed, one after the other; then the
    marker in the same way; what is to be removed goes last, when all that is durable.

    Args:
        device: Where the state lies. Defaults to 'cpu'.
    """

    def __init__(self, device: torch.device | str = 'cpu') -> None:
        self._area = StagingArea(device)
        self._snapshot = Snapshot(self._area)
        self._worker = _Worker(self._area, self._snapshot)
        # Also at the end of the interpreter, however that came about.
        self._end = weakref.finalize(self, self._worker.close)
        self._last: Save | None = None

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
    ) -> Save:
        """Start to save; waits for the save before.

        Args:
            files: Path and content of each.
            marker: Path and text of a small file that names them. Defaults to None.
            remove: What they replace. Defaults to ().
            late: Addresses of tensors that nothing changes before the next `fence`.
                Defaults to ().
        """
        if not self._end.alive:
            raise RuntimeError('the writer is closed')
        self.wait()
        save = Save([path for path, _ in files])
        trees = self._snapshot.take([tree for _, tree in files], late)
        self._worker.give(save, trees, marker, list(remove))
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
            self._last._done.wait()
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

    def __init__(self, area: StagingArea, snapshot: Snapshot) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._area, self._snapshot = area, snapshot
        self._process: subprocess.Popen | None = None
        self._abandoned = False
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None

    def give(self, *job: Any) -> None:
        if self._thread is None:
            thread = HelperThread('writer', self._run)
            thread.start()
            self._thread = thread  # not one that could not be started
        self._jobs.put(job)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked data loader has a copy of this, but no thread
        self._end()
        # As garbage, the writer may be collected in that thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def kill(self) -> None:
        self._abandoned = True
        process = self._process
        if process is not None:
            process.kill()
        self._end()

    def _end(self) -> None:
        if self._thread is None:
            self._area.close()
        else:
            self._jobs.put(None)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                break
            save = job[0]
            try:
                self._do(*job)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they hold the copies
                save.error = error
            finally:
                del job
                save._done.set()
        self._stop_process()
        self._area.close()

    def _do(self, save: Save, trees: list, marker: Any, remove: list[str]) -> None:
        time.sleep(GRACE)
        start = time.perf_counter()
        self._snapshot.finish()
        save.staged = time.perf_counter() - start
        records = [records_of(tree, self._area) for tree in trees]
        job = dict(
            area=self._area.address,
            files=list(zip(save.paths, records)),
            marker=marker,
            remove=remove,
        )
        start = time.perf_counter()
        answer = self._ask(job, save)
        save.seconds = time.perf_counter() - start
        if answer['error'] is not None:
            name, number, text, path = answer['error']
            raise OSError(number, text, path) if number else OSError(f'{path}: {name}: {text}')
        save.written, save.kept = answer['written'], answer['kept']

    def _ask(self, job: dict, save: Save) -> dict:
        code: int | None = None
        for _ in range(2):
            if self._abandoned:
                break
            if self._process is not None and self._process.poll() is not None:
                code = self._stop_process()
            if self._process is None:
                save.restarts += code is not None
                self._process = _start_process()
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump(job, process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError):
                code = self._stop_process()
        for path, _ in [*job['files'], *filter(None, [job['marker']])]:
            with contextlib.suppress(OSError):
                os.remove(writer_process.temporary_of(path))
        raise WriterDied(f'the writing process ended with exit code {code}')

    def _stop_process(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        # Told so: that the pipe is closed it does not see while a forked loader has it open.
        with contextlib.suppress(OSError):
            pickle.dump(None, process.stdin)
        with contextlib.suppress(OSError):  # it has died, and what it had not read is of no use
            process.stdin.close()
        process.stdout.close()
        return process.wait()


def _start_process() -> subprocess.Popen:
    # Without site and user packages, and apart from a Ctrl-C at the terminal.
    packages = str(Path(zlib_ng.__path__[0]).parent)
    return subprocess.Popen(
        [sys.executable, '-I', '-S', writer_process.__file__, str(os.getpid()), packages],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
