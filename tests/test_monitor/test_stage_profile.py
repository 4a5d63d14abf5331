"""Measure the modules of the forward pass in a training.

Also covers `mmtempo.monitor.profile_window`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner

from mmtempo.monitor import profile_window, training_monitor
from mmtempo.monitor.forward_profile import REST
from tests.testing.monitored import (
    Works,
    clock,
    fake_clock,
    lines_of,
    log_of,
    monitored,
    summary_of,
)
from tests.testing.toy import SPARSE, ToyModel

__all__ = ['fake_clock']


def test_window_of_iterations_is_measured(tmp_path: Path) -> None:
    profile = dict(modules=['net.0', 'net.1'], begin=5, iterations=10)
    cfg = monitored(tmp_path, SPARSE, iterations=40, stage_profile=profile)
    runner = Runner.from_cfg(cfg)
    runner.train()
    stages = summary_of(tmp_path)['stages']
    assert stages['iterations'] == 10
    assert {'net.0', 'net.1'} <= {stage['name'] for stage in stages['stages']}
    assert not any(module._forward_hooks for module in runner.model.modules())
    assert not any(module._forward_pre_hooks for module in runner.model.modules())


def stage_times(stages: dict) -> dict[str, float]:
    return {stage['name']: stage['seconds'] for stage in stages['stages']}


@pytest.fixture
def timed_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each linear layer of the toy model take ten milliseconds."""
    call = torch.nn.Linear.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        clock.go(0.01)
        return call(self, x)

    monkeypatch.setattr(torch.nn.Linear, 'forward', forward)
    monkeypatch.setattr(profile_window.ProfileWindow, 'clock', clock)


@pytest.mark.usefixtures('timed_stages')
def test_rest_outside_of_the_modules_is_reported(tmp_path: Path) -> None:
    profile = dict(modules=['net.0', 'net'], begin=5, iterations=10)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=40, stage_profile=profile)).train()
    stages = summary_of(tmp_path)['stages']
    assert (stages['iter'], stages['iterations'], stages['asked']) == (14, 10, 10)
    assert stage_times(stages) == {
        'net.0': pytest.approx(0.01),
        'net': pytest.approx(0.02),
        REST: pytest.approx(0),
    }
    assert [stage['share'] for stage in stages['stages']] == pytest.approx([0.5, 1, 0])
    assert (stages['never_called'], stages['by_children']) == ([], [])
    (line,) = (line for line in lines_of(tmp_path) if line['kind'] == 'stages')
    assert {key: line[key] for key in stages} == stages
    log = log_of(tmp_path)
    assert (
        'Forward pass by module (10 iterations up to iteration 14): net 20.0 ms (100 %), '
        f'net.0 10.0 ms (50 %), {REST} 0 s (0.0 %)'
    ) in log
    assert log.index('Forward pass by module (') < log.index('Throughput  40 iterations')


@pytest.mark.usefixtures('timed_stages')
@pytest.mark.parametrize('is_direct', [True, False])
def test_module_that_is_never_called_is_reported(
    is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, inputs: list, data_samples: Any = None, mode: str = '') -> Any:
        batch = torch.stack(inputs)
        batch = self.net.forward(batch) if is_direct else self.net[2](self.net[0](batch))
        return dict(loss=batch.square().mean())

    monkeypatch.setattr(ToyModel, 'forward', forward)
    monkeypatch.setattr(ToyModel, 'parse_losses', BaseModel.parse_losses)
    profile = dict(modules=['net', 'net.2', 'net.1'], begin=0, iterations=10)
    cfg = monitored(tmp_path, SPARSE, iterations=15, stage_profile=profile)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    stages = summary_of(tmp_path)['stages']
    assert stages['never_called'] == ([] if is_direct else ['net.1'])
    assert stages['by_children'] == ['net']
    assert ('; never called: net.1\n' in log_of(tmp_path)) != is_direct


@pytest.mark.parametrize('ends', ['completed', 'crashed'])
def test_run_that_ends_within_the_window_reports_it(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ArithmeticError('no more')

    monkeypatch.setattr(Works, 'at', {27: fail} if ends == 'crashed' else {})
    profile = dict(modules=['net', 'net.0'], begin=20)
    iterations = 26 if ends == 'completed' else 60
    runner = Runner.from_cfg(
        monitored(tmp_path, SPARSE, iterations=iterations, stage_profile=profile)
    )
    if ends == 'completed':
        runner.train()
    else:
        with pytest.raises(ArithmeticError):
            runner.train()
        training_monitor.end_monitored(ArithmeticError('no more'))
    summary = summary_of(tmp_path)
    assert (summary['status'], summary['warnings']) == (ends, [])
    stages = summary['stages']
    assert (stages['iter'], stages['iterations'], stages['asked']) == (26, 7, 100)
    assert [line['iterations'] for line in lines_of(tmp_path) if line['kind'] == 'stages'] == [7]
    assert '7 iterations up to' not in log_of(tmp_path)  # only in the table of the summary


@pytest.mark.parametrize(('modules', 'never'), [('auto', []), (['data_preprocessor'],) * 2])
def test_preprocessor_counts_as_never_called_only_if_named(
    modules: str | list, never: list, tmp_path: Path
) -> None:
    profile = dict(modules=modules, begin=2, iterations=5)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=10, stage_profile=profile)).train()
    stages = summary_of(tmp_path)['stages']
    assert list(stage_times(stages)) == ([REST] if never else ['net', REST])
    assert stages['never_called'] == never


def test_warning_if_the_window_is_not_reached(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, iterations=40, stage_profile={})
    cfg.default_hooks.checkpoint.interval = 40
    Runner.from_cfg(cfg).train()
    summary = summary_of(tmp_path)
    says = (
        'stage_profile: nothing was measured, because the window begins with iteration 50 and the '
        'training ended with iteration 40; set default_hooks.timer.stage_profile.begin below 40 '
        '(it counts from iteration 0)'
    )
    assert summary['warnings'] == [says]
    assert 'stages' not in summary
    assert log_of(tmp_path).count(says) == 1
    cfg = monitored(tmp_path, SPARSE, iterations=70, stage_profile={})
    cfg.resume = True
    Runner.from_cfg(cfg).train()
    (warning,) = summary_of(tmp_path)['warnings']
    assert 'begins with iteration 90 and the training ended with iteration 70' in warning
    assert 'begin below 30 (it counts from iteration 40, where this training started)' in warning


def test_no_warning_without_iterations() -> None:
    window = profile_window.ProfileWindow.of({}, torch.nn.Linear(1, 1), torch.device('cpu'), 7)
    assert window is not None
    assert window.missed(7, 7) is None
    assert 'begins with iteration 57' in str(window.missed(7, 8))


def test_warning_if_the_model_is_not_called_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ToyModel.forward

    def train_step(self: Any, data: dict, optim_wrapper: Any) -> dict:
        data = self.data_preprocessor(data, True)
        loss, log_vars = self.parse_losses(call(self, **data, mode='loss'))
        optim_wrapper.update_params(loss)
        return log_vars

    monkeypatch.setattr(ToyModel, 'train_step', train_step)
    profile = dict(modules=['net'], begin=10, iterations=5)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=30, stage_profile=profile)).train()
    (warning,) = summary_of(tmp_path)['warnings']
    assert warning.startswith(
        'stage_profile: nothing was measured from iteration 10 to 30, because no iteration'
    )
    assert 'ThroughputMonitorHook: ' not in log_of(tmp_path)  # no error while stopping


def test_log_line_has_the_largest_modules_only() -> None:
    found = dict(iter=9, iterations=1, never_called=[str(name) for name in range(7)])
    stages = [
        dict(name=f'part {share}', seconds=1.0, share=share / 100, device_seconds=2.0 * share)
        for share in (1, 9, 4, 25, 16, 36)
    ]
    rest = dict(name='rest', seconds=1.5, share=0.09, device_seconds=None)
    assert profile_window.line_of(dict(found, stages=[*stages, rest])) == (
        'Forward pass by module (1 iteration up to iteration 9): part 36 72.0 s (36 %), part 25 '
        '50.0 s (25 %), part 16 32.0 s (16 %), part 9 18.0 s (9.0 %), part 4 8.00 s (4.0 %), '
        '1 more, rest 1.50 s (9.0 %); never called: 0, 1, 2, 3, 4 and 2 more'
    )


def test_missing_module_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, stage_profile=dict(modules=['backbone']))
    with pytest.raises(ValueError, match=r'timer\.stage_profile\.modules.*backbone'):
        Runner.from_cfg(cfg).train()
