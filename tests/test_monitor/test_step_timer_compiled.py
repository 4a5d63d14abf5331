"""Parts of a training step with compiled models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapper

from mmtempo.monitor.step_timer import StepTimer
from tests.testing.compiled_models import compiling
from tests.testing.timed_steps import STEP, MarkLog, Separate, TimedModel, Toy, hooked_in, sgd


@pytest.fixture
def graphs() -> Iterator[list]:
    """Collect compiled graphs."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def test_compiled_train_step_gets_no_hooks(graphs: list) -> None:
    model = Toy()
    optimizer = sgd(model)
    # Like mmengine's `compile`.
    model.train_step = torch.compile(model.train_step, backend=compiling(graphs))
    marks: Any = MarkLog()
    for outer in (model, Separate(model)):
        timer = StepTimer(marks)
        assert not timer.install(outer, [optimizer])
        assert not hooked_in(model)
        assert not optimizer._optimizer_step_pre_hooks
        timer.begin()
        timer.end()
        assert marks == ['train_step']  # a single part
        marks.clear()
        timer.close()
        timer.begin()
        timer.end()
        assert marks == []


def test_compiled_forward_has_all_parts(graphs: list) -> None:
    model = Toy()
    model.forward = torch.compile(model.forward, backend=compiling(graphs), fullgraph=True)
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    for _ in range(2):
        assert timed.step() == STEP
    assert len(graphs) == 1


def test_model_compiled_in_place_is_one_graph(graphs: list) -> None:
    """Its hooks are traced, and ours must neither enter nor break the graph."""
    model = Toy()
    model.compile(backend=compiling(graphs), fullgraph=True)
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    both = ['forward and backward', 'step']
    for _ in range(2):
        assert timed.step() == both
    assert len(graphs) == 1
