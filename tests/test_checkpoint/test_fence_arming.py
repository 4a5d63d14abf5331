"""The fence is armed while a snapshot copies, and is not called otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch._dynamo.utils import counters

from mmtempo.checkpoint.fence import SnapshotFence


class ChangingHook(Hook):
    """Hook of a user that may change weights before the forward pass."""

    priority = 'HIGHEST'

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        pass


class Watched:
    """Fence with a fake runner that counts its calls."""

    def __init__(self, *hooks: Hook) -> None:
        self.is_copying = False
        self.before_step: Any = lambda: None
        self.calls = self.between = 0
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.ones(1)
        self.optimizer = torch.optim.SGD([parameter], 0.1)
        self.fence = SnapshotFence(self._fence_call, self._between)
        self.runner: Any = SimpleNamespace(
            hooks=list(hooks),
            model=torch.nn.Linear(1, 1),
            optim_wrapper=OptimWrapper(optimizer=self.optimizer),
            logger=SimpleNamespace(info=lambda text: None),
        )
        assert self.fence.install(self.runner)
        self.fence.attach(self.runner)

    def _fence_call(self) -> bool:
        self.calls += 1
        return self.is_copying

    def _between(self, runner: Any) -> None:
        assert runner is self.runner
        self.between += 1

    def iterate(self) -> int:
        """Run an iteration, and return how often it calls `fence`."""
        before = self.calls
        self.fence.before_train_iter(self.runner, batch_idx=0)
        self.before_step()
        self.optimizer.step()
        self.fence.after_train_iter(self.runner, batch_idx=0)
        return self.calls - before

    @property
    def hooks_of_optimizer(self) -> int:
        return len(self.optimizer._optimizer_step_pre_hooks)


def test_fence_is_installed_once_before_all_other_hooks() -> None:
    """Also before one of priority HIGHEST, whose changes it must precede."""
    watched = Watched(ChangingHook())
    assert not watched.fence.install(watched.runner)
    assert [type(hook) for hook in watched.runner.hooks] == [SnapshotFence, ChangingHook]


def test_disarmed_fence_is_not_called() -> None:
    watched = Watched(ChangingHook())
    assert [watched.iterate() for _ in range(3)] == [0, 0, 0]
    assert watched.between == 3


@pytest.mark.parametrize('is_early', [False, True])
def test_armed_fence_is_called_before_the_first_change(is_early: bool) -> None:
    watched = Watched(*[ChangingHook()] * is_early)
    called_in: list[str] = []
    watched.before_step = lambda: called_in.append('step' if watched.calls == 0 else 'early')
    watched.fence.arm()
    assert [watched.iterate() for _ in range(3)] == [1, 0, 0]
    assert called_in[0] == ('early' if is_early else 'step')


def test_armed_fence_is_called_without_a_step() -> None:
    """An update may be skipped, but hooks may change averages after the iteration all the same."""
    watched = Watched()
    watched.fence.arm()
    watched.fence.after_train_iter(watched.runner, batch_idx=0)
    assert watched.calls == 1


def test_fence_stays_armed_while_a_device_copies() -> None:
    watched = Watched()
    watched.is_copying = True
    watched.fence.arm()
    assert [watched.iterate() for _ in range(2)] == [2, 2]
    watched.is_copying = False
    assert [watched.iterate() for _ in range(2)] == [1, 0]


class Line(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        return dict(loss=self.line(inputs).square().mean())


def frames_compiled(saves: bool) -> int:
    """Count the compiled frames of a training with `compile`, as mmengine does it."""
    torch._dynamo.reset()
    counters.clear()
    model = Line()
    model.train_step = torch.compile(model.train_step, backend=lambda graph, _: graph.forward)
    watched = Watched()
    wrapper = OptimWrapper(optimizer=torch.optim.SGD(model.parameters(), 0.01))
    watched.runner.model, watched.runner.optim_wrapper = model, wrapper
    watched.fence.attach(watched.runner)
    for number in range(16):
        model.train_step(dict(inputs=torch.ones(2, 3)), wrapper)
        watched.fence.after_train_iter(watched.runner, batch_idx=number)
        if saves and number % 2:
            watched.fence.arm()
    # Before each step that follows a save.
    assert watched.calls == (7 if saves else 0)
    torch._dynamo.reset()
    return counters['frames']['total']


def test_save_does_not_recompile_the_step() -> None:
    assert frames_compiled(saves=True) == frames_compiled(saves=False)


def test_detached_fence_is_not_called() -> None:
    watched = Watched()
    assert watched.hooks_of_optimizer == 1
    watched.fence.arm()
    watched.fence.detach()
    assert watched.iterate() == 0
    assert watched.hooks_of_optimizer == 0
