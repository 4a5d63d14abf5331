"""Messages and exit codes of tools that fail, or are interrupted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

from mmtempo.checkpoint.saver import CheckpointError
from mmtempo.cli.run import LaunchError, run_tool
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.loaders import LoaderError
from tests.testing import forks
from tests.testing.two_ranks import both, free_port


def test_launch_error_while_running_is_a_message(capsys: pytest.CaptureFixture) -> None:
    def run(prepared: Any) -> None:
        raise LaunchError('too short')

    assert run_tool('tool.py', lambda: None, run) == 2
    assert capsys.readouterr().err == 'tool.py: error: too short\n'


@pytest.mark.parametrize(
    ('error', 'code', 'message'),
    [
        (KeyboardInterrupt(), 130, 'interrupted; newest checkpoint: {}/iter_1.pth'),
        (SystemExit(143), 143, 'terminated; newest checkpoint: {}/iter_1.pth'),
        (CheckpointError('saving iter_9.pth failed'), 1, 'error: saving iter_9.pth failed'),
        (LoaderError('no batch'), 1, 'stopped: no batch; newest checkpoint: {}/iter_1.pth'),
        (BadSampleError('a.png: cut'), 1, 'on_bad_sample=skip; newest checkpoint: {}/iter_1.pth'),
    ],
)
def test_failed_run_ends_with_message_and_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def run(_: Config) -> None:
        raise error

    cfg = Config(dict(work_dir=str(tmp_path)))
    torch.save(dict(meta=dict(iter=1), message_hub={}), tmp_path / 'iter_1.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_1.pth'))
    assert run_tool('train.py', lambda: cfg, run) == code
    assert message.format(tmp_path) in capsys.readouterr().err


def test_other_exits_are_raised() -> None:
    def run(_: Config) -> None:
        raise SystemExit(5)

    with pytest.raises(SystemExit, match='5'):
        run_tool('train.py', Config, run)


def end_one_rank(rank: int, port: int) -> None:
    """Fail in the first process after the last exchange with the second one."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port)
    )

    def run(_: Any) -> None:
        torch.distributed.init_process_group('gloo')
        torch.distributed.barrier()
        if rank == 0:
            raise CheckpointError('saving iter_9.pth failed')

    sys.exit(run_tool('train.py', lambda: Config(dict(work_dir='none')), run))


def test_failure_of_the_last_save_is_a_message_in_all_processes(tmp_path: Path) -> None:
    port = free_port()
    logs = [tmp_path / f'rank{rank}.log' for rank in (0, 1)]
    children = [
        forks.start(end_one_rank, log, rank=rank, port=port) for rank, log in enumerate(logs)
    ]
    texts = both(children, 1)
    assert 'train.py (rank 0): error: saving iter_9.pth failed' in texts[0]
    assert 'Traceback' not in texts[0] + texts[1]
