"""Views show the runner as it is, or as it was at a log point."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from mmengine.logging import MessageHub

from mmtempo.logging.nonfinite import NonFiniteWatch
from mmtempo.logging.runner_view import LogPoint, RunnerView
from mmtempo.logging.scalar_buffer import ScalarBuffer
from tests.testing.common import next_name


def test_view_replaces_the_visualizer_only() -> None:
    runner: Any = SimpleNamespace(iter=4, visualizer='its own')
    view = RunnerView(runner, visualizer='another')  # type: ignore[arg-type]
    assert (view.iter, view.visualizer) == (4, 'another')
    runner.iter = 5
    assert view.iter == 5


def test_log_point_keeps_what_was_true_then() -> None:
    hub = MessageHub(next_name())
    scalars = ScalarBuffer(hub, NonFiniteWatch('warn', print), lambda key: 10)
    runner: Any = SimpleNamespace(iter=0, epoch=0, model='a model', message_hub=hub, max_iters=9)
    hub.update_info('eta', 1.0)
    scalars.note('train/loss', torch.tensor(0.5))
    scalars.seal(0)
    point = LogPoint(runner, scalars, visualizer='another')  # type: ignore[arg-type]
    runner.iter = runner.epoch = 7
    hub.update_info('eta', 2.0)
    scalars.note('train/loss', torch.tensor(8.0))
    scalars.seal(1)
    assert scalars.deliver(point.window, wait=True)
    assert (point.iter, point.epoch, point.model, point.max_iters) == (0, 0, None, 9)
    assert point.message_hub.get_info('eta') == 1.0
    assert point.message_hub.get_scalar('train/loss').data[0].tolist() == [0.5]
    assert hub.get_scalar('train/loss').data[0].tolist() == [0.5, 8.0]
