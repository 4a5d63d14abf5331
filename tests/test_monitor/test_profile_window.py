"""A window of iterations is measured once, and no hook is left after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mmtempo.monitor.forward_profile import REST, ForwardProfile
from mmtempo.monitor.profile_window import ProfileWindow, line_of, modules_of
from tests.testing.profiled_models import Clock, Model, hooks_of


def window_of(model: Any, begin: int, iterations: int, outside: tuple = ()) -> ProfileWindow:
    modules = dict(backbone=model.backbone, head=model.head, unused=nn.Identity())
    return ProfileWindow(
        ForwardProfile(model, modules, clock=model.clock), begin, iterations, outside
    )


def train(model: Any, window: ProfileWindow, numbers: range) -> None:
    for number in numbers:
        window.begin(number)
        model(torch.ones(1)).backward()
        window.end(number)


def test_window_measures_its_iterations_only() -> None:
    model = Model(Clock())
    window = window_of(model, begin=3, iterations=2)
    train(model, window, range(1, 3))
    assert hooks_of(model) == 0
    train(model, window, range(3, 4))
    assert hooks_of(model) > 0
    assert window.take() is None
    train(model, window, range(4, 8))
    assert hooks_of(model) == 0
    times = window.take()
    assert times is not None
    assert (times['iter'], times['iterations'], times['asked']) == (4, 2, 2)
    assert [module['name'] for module in times['stages']] == ['backbone', 'head', REST]
    assert [module['share'] for module in times['stages']] == pytest.approx([0.3, 0.1, 0.6])
    assert (times['never_called'], times['by_children']) == (['unused'], [])
    assert window.take() is None
    assert window.missed(0, 7) is None


def test_modules_outside_of_the_forward_pass_are_not_reported() -> None:
    model = Model(Clock())
    window = window_of(model, begin=1, iterations=1, outside=('unused',))
    train(model, window, range(1, 2))
    times = window.take()
    assert times is not None
    assert times['never_called'] == []


def test_close_ends_an_incomplete_window() -> None:
    model = Model(Clock())
    window = window_of(model, begin=1, iterations=10)
    train(model, window, range(1, 4))
    window.close()
    assert hooks_of(model) == 0
    times = window.take()
    assert times is not None
    assert (times['iterations'], times['asked']) == (3, 10)


def test_window_counts_from_the_first_iteration_of_the_training() -> None:
    window = ProfileWindow.of(dict(begin=5), nn.Sequential(nn.ReLU()), torch.device('cpu'), 100)
    assert window is not None
    assert window.missed(100, 100) is None
    assert window.missed(100, 103) == (
        'stage_profile: nothing was measured, because the window begins with iteration 105 and the '
        'training ended with iteration 103; set default_hooks.timer.stage_profile.begin below 3 '
        '(it counts from iteration 100, where this training started)'
    )
    assert ProfileWindow.of(None, nn.ReLU(), torch.device('cpu'), 0) is None


def test_model_never_called_in_the_window_is_reported() -> None:
    model = Model(Clock())
    window = window_of(model, begin=2, iterations=5)
    for number in range(1, 5):
        window.begin(number)
        window.end(number)
    window.close()
    assert window.take() is None
    assert window.missed(0, 4) == (
        'stage_profile: nothing was measured from iteration 2 to 4, because no iteration called '
        'the whole model in training mode and completed the call'
    )


def test_unknown_module_raises_with_its_key() -> None:
    with pytest.raises(
        ValueError, match=r'default_hooks\.timer\.stage_profile\.modules: Model has'
    ):
        modules_of(dict(modules=['necks']), Model(Clock()))


def test_log_line_names_host_and_device_seconds() -> None:
    module = dict(name='backbone', seconds=0.5, share=0.75, device_seconds=None)
    rest = dict(name=REST, seconds=0.5, share=0.25, device_seconds=0.002)
    assert line_of(dict(iter=9, iterations=2, stages=[module, rest], never_called=['neck'])) == (
        'Forward pass by module (2 iterations up to iteration 9): backbone 500 ms (75 %), '
        f'{REST} 2.00 ms (25 %); never called: neck'
    )
