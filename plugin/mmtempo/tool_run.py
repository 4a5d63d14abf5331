"""How a tool runs, and how it ends: every end has a message and an exit code."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from .bev.errors import BadSampleError
from .core.nonfinite import NonFiniteError
from .hooks.checkpoint_saving import CheckpointError
from .hooks.progress_bar import close_bars
from .hooks.training_monitor import end_monitored
from .loaders import LoaderError
from .resume import how_to_go_on
from .serialization import UnreadableCheckpointError

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
        try:
            run(prepared)
        except BaseException as error:
            end_monitored(error)  # before it is caught here, and nobody can tell any more
            raise
        finally:
            close_bars()  # a last word goes below the log, not above a bar
    except KeyboardInterrupt:
        print(f'\n{name}: interrupted{how_to_go_on(prepared)}', file=sys.stderr)
        return 130
    except SystemExit as error:
        if error.code != TERMINATED:
            raise
        print(f'\n{name}: terminated{how_to_go_on(prepared)}', file=sys.stderr)
        return TERMINATED
    except CheckpointError as error:
        print(f'\n{name}: error: {error}{how_to_go_on(prepared)}', file=sys.stderr)
        return 1
    except (LaunchError, UnreadableCheckpointError) as error:
        print(f'{name}: error: {error}', file=sys.stderr)
        return 2
    except NonFiniteError as error:
        print(f'\n{name}: stopped: {error}', file=sys.stderr)
        return 1
    except (LoaderError, BadSampleError) as error:
        print(f'\n{name}: stopped: {_why_no_batch(error)}{how_to_go_on(prepared)}', file=sys.stderr)
        return 1
    if torch.distributed.is_initialized():
        # Nobody leaves before everybody is done: gloo aborts a process that still talks.
        torch.distributed.barrier()
        over_gloo = torch.distributed.get_backend() == 'gloo'
        torch.distributed.destroy_process_group()
        if over_gloo:
            _leave()
    return 0


def _why_no_batch(error: Exception) -> str:
    if not isinstance(error, BadSampleError) and not isinstance(error.__cause__, BadSampleError):
        return str(error)
    # A worker wraps the message into its own traceback; the message is the last line.
    return (
        f'{str(error).strip().splitlines()[-1]}\nmend or remove that file, or go on without it: '
        "on_bad_sample='skip' in the data set's config, for example "
        '--cfg-options train_dataloader.dataset.on_bad_sample=skip'
    )


def _leave() -> None:
    """End this process, and well, without tearing down torch's own threads.

    Everything is done and written by now. One process in about a hundred was seen to abort
    after Python had ended ("terminate called without an active exception"), which makes a
    run fail that has succeeded.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
