"""Distributed trainings of two processes over gloo, with the environment of torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.testing import forks
from tests.testing.common import ROOT
from tests.testing.saving import through_tool


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def run_rank(work: str, rank: int, port: int, options: dict) -> None:
    """Train as one of two processes, in a child process."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE='2', LOCAL_RANK=str(rank), MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
    )  # fmt: skip
    through_tool(work, **options)


def start_ranks(
    work: Path, of_rank: dict[int, dict] | None = None, **options: Any
) -> list[forks.Child]:
    """Start both processes.

    Args:
        work: Work dir of the training.
        of_rank: Options of single processes, by rank. Defaults to None.
        options: Options of both processes.
    """
    port = free_port()
    options = {'launcher': 'pytorch', 'experiment_name': 'ranks'} | options
    return [
        forks.start(
            run_rank, work.parent / f'rank{rank}.log', work=str(work), rank=rank, port=port,
            options=options | (of_rank or {}).get(rank, {}),
        )
        for rank in (0, 1)
    ]  # fmt: skip


def both(children: list[forks.Child], code: int = 0) -> list[str]:
    """Wait for both processes and return their outputs; fail unless both exit with `code`."""
    codes, texts = [child.wait() for child in children], [child.text for child in children]
    assert codes == [code] * 2, '\n'.join(texts)
    return texts


def run_code_on_ranks(code: str, *words: object) -> tuple[list[str], list[int]]:
    """Run Python code as both processes; return their outputs and exit codes.

    Args:
        code: The code, which starts the process group.
        words: Its arguments.
    """
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', code, *map(str, words)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(
                os.environ,
                RANK=str(rank),
                WORLD_SIZE='2',
                MASTER_ADDR='127.0.0.1',
                MASTER_PORT=str(port),
            ),
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    return outputs, [process.returncode for process in processes]
