"""Scripts that start several processes pass signals on to the training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS

from tests.testing.common import ROOT
from tests.testing.saving import files, marked, saving
from tests.testing.toy import ToyDataset
from tests.testing.two_ranks import free_port

INT, TERM = signal.SIGINT, signal.SIGTERM
STUB = """#!/usr/bin/env bash
trap 'echo terminated; exit 143' TERM
echo "process $$: $*"
for _ in $(seq 1000); do sleep 0.1; done
"""


@HOOKS.register_module()
class SlowIterations(Hook):
    """Hook that makes iterations longer than the period in which processes share signals.

    Args:
        seconds: Seconds by which an iteration is delayed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


@DATASETS.register_module()
class FailsOnRankOne(ToyDataset):
    """Data set that fails at one of its samples in the process of rank 1.

    Args:
        at: Number of the sample in the order in which the process makes them, from 1.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __getitem__(self, index: int) -> dict:
        self.calls += 1
        if self.calls == self.at and os.environ['RANK'] == '1':
            raise ZeroDivisionError('no such pixel')
        return super().__getitem__(index)


@contextmanager
def script(name: str, *words: object, **environment: str) -> Iterator[subprocess.Popen]:
    """Yield a running script; kill its process group on exit."""
    process = subprocess.Popen(
        ['bash', str(ROOT / 'tools' / name), *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | environment,
        # Tests that a shell runs in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(INT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize(
    ('name', 'words', 'command'),
    [
        ('dist_train.sh', ['c.py', 2], 'train.py c.py --launcher pytorch'),
        ('dist_test.sh', ['c.py', 'c.pth', 2], 'test.py c.py c.pth --launcher pytorch'),
        ('slurm_train.sh', ['part', 'job', 'c.py'], 'train.py c.py --launcher slurm'),
        ('slurm_test.sh', ['part', 'job', 'c.py', 'c.pth'], 'test.py c.py c.pth --launcher slurm'),
    ],
)
def test_script_is_replaced_by_the_launcher(
    name: str, words: list, command: str, tmp_path: Path
) -> None:
    """Docker, Kubernetes and supervisors signal only the process that they have started."""
    for stub in ('python', 'srun'):
        (tmp_path / stub).write_text(STUB)
        (tmp_path / stub).chmod(0o755)
    path = f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'
    with script(name, *words, PATH=path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f'process {process.pid}: ')
        assert line.strip().endswith(command)
        process.send_signal(TERM)
        assert process.stdout.readline() == 'terminated\n'
        assert process.wait() == 143


def write_config(work: Path, **options: Any) -> Path:
    """Write the config of a training with iterations of 1.2 s; return its path."""
    options = {'train_cfg.max_iters': 500, 'train_cfg.val_interval': 1000} | options
    cfg = saving(work, **options)
    cfg.default_hooks.logger.interval = 1
    cfg.default_hooks.checkpoint.interval = 1000
    cfg.custom_hooks = [dict(type='SlowIterations', seconds=1.2)]
    modules = ['mmtempo', 'tests.testing.saving', __name__]
    cfg.custom_imports = dict(imports=modules, allow_failed_imports=False)
    cfg.pop('launcher')
    path = work.parent / 'config.py'
    cfg.dump(str(path))
    return path


def environment() -> dict[str, str]:
    """Return environment variables for scripts that run this Python."""
    return {
        'PATH': f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
        'PYTHONPATH': f'{ROOT / "plugin"}{os.pathsep}{ROOT}',
        'PYTHONUNBUFFERED': '1',
        'PORT': str(free_port()),
        'OMP_NUM_THREADS': '1',
    }


@pytest.mark.parametrize(
    ('number', 'to_group'),
    [
        (TERM, False),
        pytest.param(TERM, True, marks=pytest.mark.slow),
        # As from a terminal; torchrun sends the signal to its processes again.
        pytest.param(INT, True, marks=pytest.mark.slow),
    ],
)
def test_signal_to_dist_train_saves_a_checkpoint(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    work = tmp_path / 'work'
    config = write_config(work)
    with script('dist_train.sh', config, 2, '--work-dir', work, **environment()) as process:
        assert process.stdout is not None
        text = ''
        for line in process.stdout:
            text += line
            if '[  2/500]' in line:
                break
        assert '[  2/500]' in text, text
        if to_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        rest = process.stdout.read()
        code = process.wait()
    assert code == 128 + number, rest
    assert marked(work).name in ('iter_2.pth', 'iter_3.pth'), (
        rest
    )  # long before the tenth iteration
    assert files(work) == [marked(work).name]
    assert 'Traceback' not in rest
    assert rest.count(f'newest checkpoint: {marked(work)}') == 1
    assert rest.count('add --resume to the same command') == 1


@pytest.mark.slow  # quick tests: tests/test_loops/test_rank_failure.py
def test_failure_of_one_process_ends_dist_train(tmp_path: Path) -> None:
    """torchrun terminates the others; before that, rank 0 saves and prints a message."""
    work = tmp_path / 'work'
    config = write_config(
        work,
        **{
            'train_cfg.type': 'PrefetchIterBasedTrainLoop',
            'train_dataloader.dataset': dict(type='FailsOnRankOne', at=7),
        },
    )
    with script('dist_train.sh', config, 2, '--work-dir', work, **environment()) as process:
        text = process.communicate()[0]
    assert process.returncode == 1, text
    assert marked(work).name == 'iter_3.pth'
    assert 'train.py (rank 1): stopped: ' in text
    assert 'train.py (rank 0): stopped: rank 1 failed: LoaderError: ' in text
    assert text.count(f'newest checkpoint: {marked(work)}') == 1
    assert 'torchrun: processes failed: ' in text
