"""The fence is armed while a snapshot copies, and costs nothing otherwise."""

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
        self.fence.observe(self.runner)

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
    assert watched.hooks_of_optimizer == 0
    assert watched.between == 3


@pytest.mark.parametrize('is_early', [False, True])
def test_armed_fence_is_called_for_one_iteration(is_early: bool) -> None:
    watched = Watched(*[ChangingHook()] * is_early)
    watched.fence.arm()
    # Before and after the step, and before the forward pass if a hook may change weights there.
    assert [watched.iterate() for _ in range(3)] == [2 + is_early, 0, 0]
    assert watched.hooks_of_optimizer == 0


def test_fence_stays_armed_while_a_device_copies() -> None:
    watched = Watched()
    watched.is_copying = True
    watched.fence.arm()
    assert [watched.iterate() for _ in range(2)] == [2, 2]
    watched.is_copying = False
    assert [watched.iterate() for _ in range(2)] == [2, 0]


def test_fence_armed_twice_attaches_once() -> None:
    watched = Watched()
    watched.fence.arm()
    watched.fence.arm()
    assert watched.hooks_of_optimizer == 1
    assert watched.iterate() == 2


def test_fence_is_not_detached_during_a_step() -> None:
    """Torch iterates over the pre-hooks of the optimizer at that time."""
    watched = Watched()
    others: list[str] = []
    watched.fence.arm()
    watched.optimizer.register_step_pre_hook(lambda *_: others.append('another'))
    watched.optimizer.step()
    assert others == ['another']
    assert watched.hooks_of_optimizer == 2


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
    watched.fence.observe(watched.runner)
    for number in range(16):
        model.train_step(dict(inputs=torch.ones(2, 3)), wrapper)
        watched.fence.after_train_iter(watched.runner, batch_idx=number)
        if saves and number % 2:
            watched.fence.arm()
    # Before and after each step that follows a save.
    assert watched.calls == (14 if saves else 0)
    torch._dynamo.reset()
    return counters['frames']['total']


def test_save_does_not_recompile_the_step() -> None:
    assert frames_compiled(saves=True) == frames_compiled(saves=False)


def test_ignored_fence_stays_disarmed() -> None:
    watched = Watched()
    watched.fence.arm()
    watched.fence.ignore()
    assert watched.iterate() == 0
    watched.fence.arm()  # after the training no parameter changes
    assert watched.hooks_of_optimizer == 0
