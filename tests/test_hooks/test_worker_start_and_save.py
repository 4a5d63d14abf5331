"""Loader workers that start during a save: neither waits for the other, whichever is first."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.core.archive import check_archive
from mmtempo.core.durable_writer import DurableWriter
from mmtempo.loaders import build_prefetch_dataloader

from ..test_loaders.samples import Noisy
from . import forks

BOUND = 20.0  # seconds; only what hangs takes that long

forks.MODULES.append(__name__)


class ForkInsidePopen:
    """Forces the interleaving that hangs: a fork while another thread is within `Popen`.

    `Popen` waits until no process has the write end of its error pipe. A process that is forked
    between the creation of that pipe and its close has it for as long as it lives.
    """

    def __init__(self) -> None:
        self.inside, self._forked = threading.Event(), threading.Event()
        self._pipe = os.pipe
        os.pipe = self._hold  # type: ignore[assignment]
        os.register_at_fork(after_in_parent=self._note)

    def _hold(self) -> tuple[int, int]:
        ends = self._pipe()
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and sys._getframe(1).f_code.co_name == '_execute_child':
            self.inside.set()
            self._forked.wait()
        return ends

    def _note(self) -> None:
        if self.inside.is_set():
            self._forked.set()


def save_and_start(work: str, when: str) -> None:
    """Save, and start a loader worker as soon as the writer is started or the save has ended."""
    interleaving = ForkInsidePopen()
    writer = DurableWriter()
    content = dict(value=torch.ones(3))
    if when != 'first':
        writer.save([(f'{work}/before', content)])
        writer.wait()
        process = writer._worker._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP if when == 'killed with a job' else signal.SIGKILL)
    writer.save([(f'{work}/file', content)])
    if when == 'killed with a job':
        os.kill(process.pid, signal.SIGKILL)
    while writer.is_busy and not interleaving.inside.is_set():
        time.sleep(0.001)
    cfg: dict[str, Any] = dict(
        dataset=Noisy(), sampler=dict(type='DefaultSampler'), batch_size=4, num_workers=1
    )
    loader = build_prefetch_dataloader(cfg, seed=3, endless=True)
    loader.take()
    writer.wait()  # the worker lives
    loader.close()
    writer.close()


@pytest.mark.parametrize('when', ['first', 'killed while idle', 'killed with a job'])
def test_worker_forked_while_writer_starts(when: str, tmp_path: Path) -> None:
    child = forks.start(save_and_start, tmp_path / 'log', work=str(tmp_path), when=when)
    assert child.wait(BOUND) == 0, child.text
    assert check_archive(str(tmp_path / 'file')) is None
