"""Longest times among processes, and their ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.monitor import rank_times
from mmtempo.monitor.rank_times import RankTimes
from tests.testing.processes import FORK


def in_group(pipe: Any, rank: int, size: int, folder: str) -> None:
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=rank, world_size=size
    )
    ranks = RankTimes()
    results = [ranks.take()]
    for times in [(0.5, 1.0), (0.25 * rank, 2.0 - rank)]:
        ranks.send(*times)
        results += [ranks.take(), ranks.take()]
    ranks.send(3.0, 1.0 + rank)
    ranks.send(0.0, 5.0 - rank)  # the result before was not taken
    results.append(ranks.take())
    torch.distributed.destroy_process_group()
    pipe.send(results)


def test_two_processes_exchange_times(tmp_path: Path) -> None:
    pipes = [FORK.Pipe() for _ in range(2)]
    processes = [
        FORK.Process(target=in_group, args=(there, rank, 2, str(tmp_path)))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for here, _ in pipes:
        assert here.poll(40)
        assert here.recv() == [
            None,
            dict(data=dict(max=0.5, rank=0, min=0.5), step=dict(max=1.0, rank=0, min=1.0)),
            None,
            dict(data=dict(max=0.25, rank=1, min=0.0), step=dict(max=2.0, rank=0, min=1.0)),
            None,
            dict(data=dict(max=0.0, rank=0, min=0.0), step=dict(max=5.0, rank=0, min=4.0)),
        ]
    for process in processes:
        process.join()
        assert process.exitcode == 0


def test_single_process_sends_nothing() -> None:
    ranks = RankTimes()
    ranks.send(1.0, 2.0)
    assert ranks.take() is None


class FakeGroup:
    """Three processes on an accelerator; `arrived` results are on the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        self.arrived = 0
        self.sent = 0
        monkeypatch.setattr(rank_times, 'get_world_size', lambda: 3)
        monkeypatch.setattr(rank_times, 'get_comm_device', lambda: torch.device('cuda:1'))
        monkeypatch.setattr(rank_times, 'to_device', self.bring)
        monkeypatch.setattr(rank_times, 'all_gather', self.gather)
        monkeypatch.setattr(rank_times, 'HostCopy', self.copy)

    def bring(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.done.append(str(device))
        return tensor

    def gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.done.append('gather')
        return [own, own + 2, own + 1]

    def copy(self, rows: torch.Tensor) -> Any:
        self.done.append('copy')
        self.sent += 1
        number, group = self.sent, self

        class Copy(SimpleNamespace):
            @property
            def arrived(self) -> bool:
                return number <= group.arrived

            def values(self) -> list:
                assert self.arrived, 'the host synchronizes'
                return rows.tolist()

        return Copy()


def test_accelerator_is_not_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup(monkeypatch)
    ranks = RankTimes()
    for log_point in range(3):
        ranks.send(float(log_point), 1.0)
        assert ranks.take() is None
    assert group.done == ['cuda:1', 'gather', 'copy'] * 3
    group.arrived = 2
    assert ranks.take() == dict(
        data=dict(max=3.0, rank=1, min=1.0), step=dict(max=3.0, rank=1, min=1.0)
    )
    assert ranks.take() is None
    group.arrived = 3
    assert ranks.take() == dict(
        data=dict(max=4.0, rank=1, min=2.0), step=dict(max=3.0, rank=1, min=1.0)
    )


def test_pending_results_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup(monkeypatch)
    ranks = RankTimes()
    for _ in range(50):
        ranks.send(0.0, 0.0)
    assert len(ranks._pending) == 8
    group.arrived = 50
    assert ranks.take() is not None
