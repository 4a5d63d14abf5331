"""How a tool runs, and how it ends: every end has a message and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from mmengine.dist import get_dist_info

from mmtempo.checkpoint.loading import UnreadableCheckpointError
from mmtempo.checkpoint.resume import how_to_go_on
from mmtempo.checkpoint.saver import CheckpointError
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.loaders import LoaderError
from mmtempo.logging.nonfinite import NonFiniteError
from mmtempo.logging.progress_bar import close_bars
from mmtempo.loops.shared_failure import RankFailedError, shared_failure
from mmtempo.monitor.training_monitor import end_monitored

TERMINATED = 128 + signal.SIGTERM


class LaunchError(ValueError):
    """What the user asked for cannot be started; the message says what to do."""


def run_tool(name: str, prepare: Callable[[], Any], run: Callable[[Any], None]) -> int:
    """Prepare, then run; mistakes found while preparing end in a message, not in a traceback.

    Set MMTEMPO_DEBUG=1 to see the traceback as well.
    """
    try:
        prepared = prepare()
    except Exception as error:
        if os.environ.get('MMTEMPO_DEBUG'):
            raise
        # KeyError quotes its message; mmengine's registries raise it with whole sentences.
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        kind = '' if isinstance(error, LaunchError) else f'{type(error).__name__}: '
        print(f'{name}: error: {kind}{text}', file=sys.stderr)
        print('nothing was written; MMTEMPO_DEBUG=1 shows the traceback', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'\n{name}: interrupted; nothing was written', file=sys.stderr)
        return 130
    try:
        with shared_failure():
            try:
                run(prepared)
            except BaseException as error:
                end_monitored(error)  # while the error is still the current one
                raise
            finally:
                close_bars()  # a last word goes below the log, not above a bar
            if torch.distributed.is_initialized():
                # No process leaves before all are done: gloo aborts one that still talks.
                torch.distributed.barrier()
    except BaseException as error:
        with _terminations_ignored():
            return _leave(_end(name, prepared, error))
    return _leave(0)


def _end(name: str, prepared: Any, error: BaseException) -> int:
    """Report how a run has ended, once for all of its processes; the exit code."""
    rank, processes = get_dist_info()
    code, end, is_resumable = _description(error)
    if processes > 1 and code < 128:
        name = f'{name} (rank {rank})'
    if rank == 0 or (code < 128 and not isinstance(error, RankFailedError)):
        # Other processes may end before rank 0 has saved.
        hint = how_to_go_on(prepared) if rank == 0 and is_resumable else ''
        start = '' if isinstance(error, LaunchError) else '\n'  # after the progress of a run
        print(f'{start}{name}: {end}{hint}', file=sys.stderr)
    return code


def _description(error: BaseException) -> tuple[int, str, bool]:
    """Exit code, message, and whether the training can be resumed as it is."""
    if isinstance(error, KeyboardInterrupt):
        return 130, 'interrupted', True
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return TERMINATED, 'terminated', True
    if isinstance(error, (LaunchError, UnreadableCheckpointError)):
        return 2, f'error: {error}', False
    if isinstance(error, CheckpointError):
        return 1, f'error: {error}', True
    if isinstance(error, NonFiniteError):
        return 1, f'stopped: {error}', False
    if isinstance(error, (LoaderError, BadSampleError)):
        return 1, f'stopped: {_why_no_batch(error)}', True
    if isinstance(error, RankFailedError):
        return 1, f'stopped: {error}', True
    raise error


@contextlib.contextmanager
def _terminations_ignored() -> Iterator[None]:
    """Let a process that is ending say so: torchrun terminates the others when one has left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _why_no_batch(error: Exception) -> str:
    if not isinstance(error, BadSampleError) and not isinstance(error.__cause__, BadSampleError):
        return str(error)
    # A worker wraps the message into its own traceback; the message is the last line.
    return (
        f'{str(error).strip().splitlines()[-1]}\nmend or remove that file, or go on without it: '
        "on_bad_sample='skip' in the data set's config, for example "
        '--cfg-options train_dataloader.dataset.on_bad_sample=skip'
    )


def _leave(code: int) -> int:
    """Return the exit code; where processes talk over gloo, end this one with it.

    Without tearing down torch's own threads: one process in about a hundred was seen to abort
    after Python had ended ("terminate called without an active exception"), which makes a run
    fail that has succeeded, and hides the exit code of one that has failed.
    """
    if not torch.distributed.is_initialized():
        return code
    over_gloo = torch.distributed.get_backend() == 'gloo'
    if code == 0:
        torch.distributed.destroy_process_group()
    if over_gloo:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
