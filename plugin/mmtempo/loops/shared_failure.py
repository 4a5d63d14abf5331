"""Report the failure of one process to the others, which fail as a consequence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.dist import is_distributed

KEY = 'mmtempo/failure'
# Errors of gloo if a process has exited without posting its failure, as after a SIGKILL.
PEER_LEFT = ('Connection closed by peer', 'Connection reset by peer', 'Broken pipe')


class RankFailedError(RuntimeError):
    """Another process has failed, and this one cannot continue without it."""


class FailureNote:
    """The first failure of a run, in the store that all of its processes share.

    Args:
        store: A `torch.distributed.Store`.
        rank: Rank of this process.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank

    def post(self, text: str) -> None:
        """Store this failure, unless there is an earlier one."""
        with contextlib.suppress(RuntimeError):  # the process that holds the store has exited
            self._store.compare_set(KEY, '', json.dumps([self._rank, text]))

    def of_other(self) -> tuple[int, str] | None:
        """Return rank and text of another process's failure; None if there is none."""
        with contextlib.suppress(RuntimeError):
            if self._store.check([KEY]):
                rank, text = json.loads(self._store.get(KEY))
                return None if rank == self._rank else (rank, text)
        return None


def explain(error: Exception, note: FailureNote) -> RankFailedError | None:
    """Post an error of this process; return what to raise instead if it is a consequence.

    Errors of collectives are plain RuntimeErrors. An error that all processes have in common is
    shown by the first of them only.
    """
    text = f'{type(error).__name__}: {error}'
    other = note.of_other()
    is_collective = type(error).__module__.startswith('torch') or type(error) is RuntimeError
    if other is not None and (is_collective or other[1] == text):
        return RankFailedError(f'rank {other[0]} failed: {other[1]}')
    if other is None and is_collective and any(reason in str(error) for reason in PEER_LEFT):
        return RankFailedError(
            'another process has left without a message (killed, perhaps by the kernel for lack '
            "of memory); see its exit code in the launcher's output"
        )
    note.post(text)
    return None


@contextlib.contextmanager
def shared_failure() -> Iterator[None]:
    """Report an error to the other processes, or name the process that caused it.

    No-op in a run of one process.

    Raises:
        RankFailedError: If another process has failed, and the error here follows from that.
    """
    try:
        yield
    except RankFailedError:
        raise
    except Exception as error:
        note = _note()
        other = None if note is None else explain(error, note)
        if other is None:
            raise
        raise other from error


def _note() -> FailureNote | None:
    distributed = torch.distributed
    if not is_distributed() or distributed.get_world_size() == 1:
        return None
    store = distributed.distributed_c10d._get_default_store()
    return FailureNote(store, distributed.get_rank())
