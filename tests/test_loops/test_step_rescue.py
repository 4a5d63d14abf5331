"""An iteration that fails before its update is undone and saved; one that may have updated is not.

Between two processes: see `test_rank_failure.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmtempo.loops import step_rescue
from mmtempo.loops.step_rescue import StepRescue
from tests.testing.common import next_name

INFO = 'position'


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Collect running mean and hub info at each save, as one of two processes over gloo."""
    found: list[tuple] = []
    for name, value in (('is_initialized', True), ('get_world_size', 2), ('get_backend', 'gloo')):
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)

    def save(runner: Any) -> None:
        norm = next(part for part in runner.model.modules() if isinstance(part, nn.BatchNorm1d))
        found.append((norm.running_mean.tolist(), runner.message_hub.get_info(INFO)))

    monkeypatch.setattr(step_rescue, 'save_state', save)
    return found


def fake_runner(model: nn.Module | None = None, wrapper: Any = None) -> Any:
    model = model or nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    wrapper = wrapper or OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    hub = MessageHub.get_instance(next_name())
    hub.update_info(INFO, 'before')
    errors: list[str] = []
    return SimpleNamespace(
        model=model, optim_wrapper=wrapper, message_hub=hub, iter=3, errors=errors,
        logger=SimpleNamespace(error=errors.append),
    )  # fmt: skip


def iterate(runner: Any, rescue: StepRescue, updates: bool) -> None:
    """Run an iteration up to a failure, with or without a completed backward pass."""
    rescue.begin()
    runner.message_hub.update_info(INFO, 'after')
    rescue.begin_step()
    loss = runner.model(torch.randn(4, 2) + 5).mean()
    if updates:
        runner.optim_wrapper.update_params(loss)
    rescue.save()


@pytest.mark.parametrize('wrapped', [False, True])
def test_forward_pass_is_undone_before_the_save(wrapped: bool, saved: list[tuple]) -> None:
    runner = fake_runner()
    if wrapped:  # as distributed, without a process group
        outer = MMDistributedDataParallel.__new__(MMDistributedDataParallel)
        nn.Module.__init__(outer)
        outer.module = runner.model
        outer.forward = runner.model.forward
        runner.model = outer
    iterate(runner, StepRescue(runner, infos=(INFO,)), updates=False)
    assert saved == [([0.0, 0.0], 'before')]


def test_iteration_that_may_have_updated_is_not_saved(saved: list[tuple]) -> None:
    runner = fake_runner()
    iterate(runner, StepRescue(runner, infos=(INFO,)), updates=True)
    assert saved == []
    assert runner.message_hub.get_info(INFO) == 'after'


def test_each_of_several_wrappers_counts(saved: list[tuple]) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    parts = {
        name: OptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
        for name, part in zip('ab', model)
    }
    runner = fake_runner(model, OptimWrapperDict(**parts))
    rescue = StepRescue(runner, infos=(INFO,))
    rescue.begin()
    rescue.begin_step()
    parts['b'].update_params(model(torch.randn(4, 2)).mean())
    rescue.save()
    assert saved == []
    rescue.begin_step()
    rescue.save()
    assert len(saved) == 1


def test_wrapper_that_does_not_count_is_not_saved(saved: list[tuple]) -> None:
    runner = fake_runner(wrapper=SimpleNamespace())
    iterate(runner, StepRescue(runner, infos=(INFO,)), updates=False)
    assert saved == []


def test_failed_save_is_logged_and_does_not_replace_the_error(
    saved: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runner: Any) -> None:
        raise OSError('no space left')

    monkeypatch.setattr(step_rescue, 'save_state', fail)
    runner = fake_runner()
    iterate(runner, StepRescue(runner, infos=(INFO,)), updates=False)
    (error,) = runner.errors
    assert 'iteration 3' in error
    assert 'no space left' in error


@pytest.mark.parametrize(('name', 'value'), [('get_world_size', 1), ('get_backend', 'nccl')])
def test_nothing_is_kept_without_gloo(
    name: str, value: Any, saved: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, name, lambda *_: value)
    runner = fake_runner()
    rescue = StepRescue(runner, infos=(INFO,))
    iterate(runner, rescue, updates=False)
    assert saved == []
    assert rescue._copies == []
