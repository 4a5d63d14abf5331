"""Run a tool, and end it with a message and an exit code whatever happens."""

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
    """A request that cannot be started; the message says what to do."""


def print_message(message: str) -> None:
    """Print to stderr: before a run there is no log, and stdout may go to a file."""
    print(message, file=sys.stderr)


def print_once(message: str) -> None:
    """Print to stderr in the first process of a distributed run."""
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        print_message(message)


def run_tool(name: str, prepare: Callable[[], Any], run: Callable[[Any], None]) -> int:
    """Prepare, then run; return the exit code.

    An exception of `prepare` ends in a message instead of a traceback. Set MMTEMPO_DEBUG=1 to see
    the traceback as well.

    Args:
        name: Name of the tool, which its messages begin with.
        prepare: Finds mistakes without writing anything; what it returns is passed to `run`.
        run: Does the work.
    """
    try:
        prepared = prepare()
    except Exception as error:
        if os.environ.get('MMTEMPO_DEBUG'):
            raise
        # str(KeyError) is quoted; the registries of mmengine raise it with whole sentences.
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        kind = '' if isinstance(error, LaunchError) else f'{type(error).__name__}: '
        print_message(f'{name}: error: {kind}{text}')
        print_message('nothing was written; MMTEMPO_DEBUG=1 shows the traceback')
        return 2
    except KeyboardInterrupt:
        print_message(f'\n{name}: interrupted; nothing was written')
        return 130
    try:
        with shared_failure():
            try:
                run(prepared)
            except BaseException as error:
                end_monitored(error)  # while the error is still the current one
                raise
            finally:
                close_bars()  # so that the last message is printed below the log
            if torch.distributed.is_initialized():
                # gloo aborts a process that still communicates with one that has ended.
                torch.distributed.barrier()
    except BaseException as error:
        with _terminations_ignored():
            return _leave(_report_end(name, prepared, error))
    return _leave(0)


def _report_end(name: str, prepared: Any, error: BaseException) -> int:
    """Print how a run has ended, once for all of its processes; return the exit code."""
    rank, processes = get_dist_info()
    code, end, is_resumable = _description(error)
    if processes > 1 and code < 128:
        name = f'{name} (rank {rank})'
    if rank == 0 or (code < 128 and not isinstance(error, RankFailedError)):
        # Rank 0 names the checkpoint: other processes may end before it has saved.
        hint = how_to_go_on(prepared) if rank == 0 and is_resumable else ''
        start = '' if isinstance(error, LaunchError) else '\n'  # ends the line of a progress bar
        print_message(f'{start}{name}: {end}{hint}')
    return code


def _description(error: BaseException) -> tuple[int, str, bool]:
    """Return exit code, message, and whether the training can be resumed unchanged."""
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
        return 1, f'stopped: {_loader_message(error)}', True
    if isinstance(error, RankFailedError):
        return 1, f'stopped: {error}', True
    raise error


@contextlib.contextmanager
def _terminations_ignored() -> Iterator[None]:
    """Ignore SIGTERM: torchrun terminates all processes once one has ended.

    Without it, a process might end before it has printed its message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _loader_message(error: Exception) -> str:
    """Return the message of a loader's error; for an unreadable file, with what to do."""
    if not isinstance(error, BadSampleError) and not isinstance(error.__cause__, BadSampleError):
        return str(error)
    # The message is the last line of the worker's traceback.
    return (
        f'{str(error).strip().splitlines()[-1]}\nrepair or remove that file, or skip it: '
        "on_bad_sample='skip' in the config of the data set, for example "
        '--cfg-options train_dataloader.dataset.on_bad_sample=skip'
    )


def _leave(code: int) -> int:
    """Return the exit code; where processes communicate over gloo, end this process with it.

    In about one of a hundred processes the teardown of torch's threads aborted after Python had
    ended ("terminate called without an active exception"). Such an abort replaces the exit code,
    also that of a run that has succeeded, so the teardown is skipped.
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
