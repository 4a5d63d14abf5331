"""The fence stands as long as something is copied, and nobody pays for it otherwise."""

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
    """Somebody's own, which may change weights early."""

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        pass


class Watched:
    """A fence, and what it has asked."""

    def __init__(self, *hooks: Hook) -> None:
        self.is_copying = False
        self.asked = self.active = 0
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.ones(1)
        self.optimizer = torch.optim.SGD([parameter], 0.1)
        self.fence = SnapshotFence(self._ask, self._go_on)
        self.runner: Any = SimpleNamespace(
            hooks=list(hooks),
            model=torch.nn.Linear(1, 1),
            optim_wrapper=OptimWrapper(optimizer=self.optimizer),
            logger=SimpleNamespace(info=lambda text: None),
        )
        assert self.fence.install(self.runner)
        self.fence.observe(self.runner)

    def _ask(self) -> bool:
        self.asked += 1
        return self.is_copying

    def _go_on(self) -> None:
        self.active += 1

    def iterate(self) -> int:
        """How often an iteration asks."""
        before = self.asked
        self.fence.before_train_iter(self.runner, batch_idx=0)
        self.optimizer.step()
        self.fence.after_train_iter(self.runner, batch_idx=0)
        return self.asked - before

    @property
    def hooks_of_optimizer(self) -> int:
        return len(self.optimizer._optimizer_step_pre_hooks)


def test_nobody_is_asked_while_nothing_is_copied() -> None:
    watched = Watched(ChangingHook())
    assert [watched.iterate() for _ in range(3)] == [0, 0, 0]
    assert watched.hooks_of_optimizer == 0
    assert watched.active == 6


@pytest.mark.parametrize('is_early', [False, True])
def test_it_stands_for_an_iteration(is_early: bool) -> None:
    watched = Watched(*[ChangingHook()] * is_early)
    watched.fence.arm()
    # Before the step and behind it; and before the forward pass, if somebody may change something.
    assert [watched.iterate() for _ in range(3)] == [2 + is_early, 0, 0]
    assert watched.hooks_of_optimizer == 0


def test_it_stands_as_long_as_a_device_copies() -> None:
    watched = Watched()
    watched.is_copying = True
    watched.fence.arm()
    assert [watched.iterate() for _ in range(2)] == [2, 2]
    watched.is_copying = False
    assert [watched.iterate() for _ in range(2)] == [2, 0]


def test_put_up_twice_it_stands_once() -> None:
    watched = Watched()
    watched.fence.arm()
    watched.fence.arm()
    assert watched.hooks_of_optimizer == 1
    assert watched.iterate() == 2


def test_in_the_midst_of_a_step_it_is_not_taken_away() -> None:
    """Torch is going through the hooks of the optimizer then."""
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
    """Of a training whose step is compiled, as mmengine's `compile` does it."""
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
    # Before each step behind a save, and behind it.
    assert watched.asked == (14 if saves else 0)
    torch._dynamo.reset()
    return counters['frames']['total']


def test_a_save_does_not_compile_the_step_anew() -> None:
    assert frames_compiled(saves=True) == frames_compiled(saves=False)


def test_it_goes_with_the_training() -> None:
    watched = Watched()
    watched.fence.arm()
    watched.fence.ignore()
    assert watched.iterate() == 0
    watched.fence.arm()  # what is saved then nobody changes any more
    assert watched.hooks_of_optimizer == 0
