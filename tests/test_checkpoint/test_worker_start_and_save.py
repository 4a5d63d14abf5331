"""Loader workers that start during a save: no hang, and no process started by a thread."""

from __future__ import annotations

import json
import multiprocessing.util
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.loaders import build_prefetch_dataloader
from tests.testing import forks
from tests.testing.samples import Noisy
from tests.testing.saving import marked, saving, with_writer

BOUND = 60.0  # seconds; only a hang takes that long

forks.MODULES.append(__name__)


class ForkInsidePopen:
    """Force the interleaving that hangs: a fork while another thread is in `Popen`.

    `Popen` waits until no process holds the write end of its error pipe. A process that is forked
    between the creation and the close of that pipe holds it until it ends.
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
    """Save, and start a loader worker once the writer is started or the save has ended."""
    interleaving = ForkInsidePopen()
    writer = DurableWriter()
    content = dict(value=torch.ones(3))
    if when != 'first':
        writer.save([(f'{work}/before', content)])
        writer.wait()
        process = writer._thread._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP if when == 'killed during a save' else signal.SIGKILL)
    writer.save([(f'{work}/file', content)])
    if when == 'killed during a save':
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


@pytest.mark.parametrize('when', ['first', 'killed while idle', 'killed during a save'])
def test_worker_forked_while_writer_starts(when: str, tmp_path: Path) -> None:
    child = forks.start(save_and_start, tmp_path / 'log', work=str(tmp_path), when=when)
    assert child.wait(BOUND) == 0, child.text
    assert check_archive(str(tmp_path / 'file')) is None


# Events of audit hooks; `multiprocessing` spawns without one.
STARTS = {'os.fork', 'os.forkpty', 'os.posix_spawn', 'os.spawn', 'os.system', 'subprocess.Popen'}
EVALUATED = {
    'train_cfg.type': 'PrefetchEpochBasedTrainLoop',
    'val_cfg.type': 'PrefetchValLoop',
    'val_dataloader.num_workers': 1,
    'val_dataloader.persistent_workers': False,
}


@HOOKS.register_module()
class KillIdleWriter(Hook):
    """Hook that kills the writer process between two saves."""

    def before_train_epoch(self, runner: Runner) -> None:
        for hook in runner.hooks:
            saving = getattr(hook, '_saver', None)
            if saving is not None and runner.epoch == 2:
                saving.wait()
                process = saving._writer._thread._process
                os.kill(process.pid, signal.SIGKILL)
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def audited(work: str, method: str) -> None:
    """Train with all parts of mmtempo, and print each started process and its thread."""
    seen: list[tuple[str, bool]] = []

    def note(event: str, args: Any) -> None:
        if event in STARTS:
            is_main = threading.get_ident() == threading.main_thread().ident
            is_writer = event == 'subprocess.Popen' and '-I' in args[1]
            seen.append(('writer' if is_writer else event, is_main))

    def spawning(*args: Any) -> int:
        note('os.spawn', args)
        return spawn(*args)

    spawn = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = spawning
    sys.addaudithook(note)
    torch.set_num_threads(1)
    with_writer(f'{work}.steps', killed=(3,))
    options: dict[str, Any] = {
        'default_hooks.runtime_info.type': 'SparseRuntimeInfoHook',
        'default_hooks.logger.type': 'SparseLoggerHook',
        'default_hooks.timer': dict(type='ThroughputMonitorHook'),
        'custom_hooks': [dict(type='EMAHook'), dict(type='Tell'), dict(type='KillIdleWriter')],
        'train_dataloader.num_workers': 2,
        'val_dataloader.multiprocessing_context': method,
    }
    Runner.from_cfg(saving(Path(work), epochs=True, **EVALUATED, **options)).train()
    print('\n' + json.dumps(seen))


@pytest.mark.parametrize('method', ['fork', pytest.param('spawn', marks=pytest.mark.slow)])
def test_only_the_main_thread_starts_processes(method: str, tmp_path: Path) -> None:
    text = forks.run(audited, tmp_path / 'log', work=str(tmp_path / 'work'), method=method)
    seen = [tuple(one) for one in json.loads(text.strip().splitlines()[-1])]
    assert {is_main for _, is_main in seen} == {True}, seen
    events = [event for event, _ in seen]
    assert events.count('writer') == 3  # one was killed during a save, and one while idle
    assert text.count('the training wrote this save itself') == 1
    assert text.count('had ended and was started again') == 2
    # Two workers of the training, one of each evaluation, and the tracker of shared resources.
    assert events.count('os.fork') == (2 + 3 if method == 'fork' else 2)
    assert events.count('os.spawn') == (0 if method == 'fork' else 3 + 1)


def train_often(work: str, runs: int, method: str) -> None:
    """Train repeatedly; each run saves and starts evaluation workers at the end of its epoch."""
    torch.set_num_threads(1)
    for number in range(runs):
        folder = Path(work) / str(number)
        options = {'train_cfg.max_epochs': 1, 'val_dataloader.multiprocessing_context': method}
        Runner.from_cfg(saving(folder, epochs=True, **EVALUATED, **options)).train()
        assert marked(folder).name == 'epoch_1.pth'
        shutil.rmtree(folder)
        print(f'run {number + 1} of {runs} has ended', flush=True)


def assert_no_hang(tmp_path: Path, runs: int, method: str, seconds: float) -> None:
    child = forks.start(
        train_often, tmp_path / 'log', work=str(tmp_path / 'work'), runs=runs, method=method
    )
    assert child.wait(seconds) == 0, child.text[-6000:]
    assert child.text.count(' has ended\n') == runs


def test_save_and_worker_start_at_the_same_moment(tmp_path: Path) -> None:
    assert_no_hang(tmp_path, 4, 'fork', forks.LONG)


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize('method', ['fork', 'spawn'])
def test_save_and_worker_start_at_the_same_moment_often(method: str, tmp_path: Path) -> None:
    assert_no_hang(tmp_path, 100, method, 3600.0)
