"""A cancelled optimizer step changes no bit, and the host does not read the flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.optim.skippable_step import GuardedGradScaler, decides_on_device, step_unless

OPTIMIZERS = {
    'sgd': lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.01),
    'sgd momentum': lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    'sgd dampening': lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.5),
    'sgd one by one': lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=False),
    'sgd fused': lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    'sgd fused plain': lambda params: torch.optim.SGD(params, lr=0.1, fused=True),
    'adam': lambda params: torch.optim.Adam(params, lr=0.1),
    'adamw amsgrad': lambda params: torch.optim.AdamW(params, lr=0.1, amsgrad=True),
    'adamw fused': lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    'nadam': lambda params: torch.optim.NAdam(params, lr=0.1),
    'rmsprop': lambda params: torch.optim.RMSprop(params, lr=0.1, momentum=0.9, centered=True),
    'adagrad': lambda params: torch.optim.Adagrad(params, lr=0.1),
    'counts': lambda params: CountsInPython(params, dict(lr=0.1)),
    'rebinds': lambda params: Rebinds(params, dict(lr=0.1)),
    'grows': lambda params: Grows(params, dict(lr=0.1)),
    'tunes itself': lambda params: TunesItself(params, dict(lr=0.1, steps=0)),
}
ON_HOST = ('counts', 'grows', 'tunes itself')


class CountsInPython(torch.optim.Optimizer):
    """An optimizer whose state has a Python number, as that of LAMB."""

    @torch.no_grad()
    def step(self) -> None:
        for param in self.param_groups[0]['params']:
            if param.grad is not None:
                state = self.state[param]
                state['step'] = state.get('step', 0) + 1
                param -= self.param_groups[0]['lr'] * param.grad / state['step']


class Rebinds(torch.optim.Optimizer):
    """An optimizer whose state is a new tensor after each step."""

    @torch.no_grad()
    def step(self) -> None:
        for param in self.param_groups[0]['params']:
            if param.grad is not None:
                state = self.state[param]
                state['average'] = 0.9 * state.get('average', 0.0) + param.grad
                param -= self.param_groups[0]['lr'] * state['average']


class Grows(torch.optim.Optimizer):
    """An optimizer whose state grows in each step."""

    @torch.no_grad()
    def step(self) -> None:
        for param in self.param_groups[0]['params']:
            if param.grad is not None:
                state = self.state[param]
                history = state.get('history', param.grad.new_zeros(0))
                state['history'] = torch.cat([history, param.grad.reshape(-1)])
                param -= self.param_groups[0]['lr'] * state['history'].mean()


class TunesItself(torch.optim.Optimizer):
    """An optimizer that changes the options of its group, as Prodigy."""

    @torch.no_grad()
    def step(self) -> None:
        group = self.param_groups[0]
        group['steps'] += 1
        group['found'] = 1 / group['steps']
        for param in group['params']:
            if param.grad is not None:
                param -= group['lr'] * group['found'] * param.grad


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    half = nn.Parameter(torch.randn(3).bfloat16())
    return [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (), (5,))] + [half]


def set_gradients(params: list[nn.Parameter], step: int, bad: bool, late: bool = True) -> None:
    """Set gradients; with `late`, the last but one parameter has none before step 3."""
    torch.manual_seed(step)
    for param in params:
        param.grad = torch.randn_like(param)
        if bad:
            param.grad.view(-1)[0] = (float('nan'), float('inf'))[step % 2]
    if late and step < 3:
        params[-2].grad = None


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().double().numpy().tobytes()


def values(optimizer: torch.optim.Optimizer) -> dict:
    """Return parameters, state and options of an optimizer bit by bit, without None."""
    values: dict[Any, Any] = {}
    for index, param in enumerate(optimizer.param_groups[0]['params']):
        values[index, 'param'] = bits(param)
        for name, value in optimizer.state.get(param, {}).items():
            if value is not None:
                values[index, name] = bits(value) if torch.is_tensor(value) else value
    group = dict(optimizer.param_groups[0])
    return values | {name: value for name, value in group.items() if name != 'params'}


def run(name: str, bad: tuple[int, ...], guarded: bool) -> list[dict]:
    params = parameters()
    optimizer = OPTIMIZERS[name](params)
    seen = []
    for step in range(8):
        # torch's fused SGD raises an error for a late gradient.
        set_gradients(params, step, step in bad, late=name != 'sgd fused')
        if guarded:
            step_unless(torch.tensor(float(step in bad)), optimizer)
        elif step not in bad:
            optimizer.step()
        seen.append(values(optimizer))
    return seen


@pytest.mark.parametrize(
    'bad', [(), (4,), (0, 1), (3, 4), tuple(range(8))], ids=lambda bad: f'bad{list(bad)}'
)
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_cancelled_step_changes_nothing(name: str, bad: tuple[int, ...]) -> None:
    assert run(name, bad, guarded=True) == run(name, bad, guarded=False)


@pytest.mark.parametrize('name', [name for name in OPTIMIZERS if name not in ON_HOST])
def test_step_does_not_synchronize_once_state_exists(name: str) -> None:
    params = parameters()
    optimizer = OPTIMIZERS[name](params)
    set_gradients(params, 3, bad=False)
    flags = [torch.zeros(()), torch.ones(()), torch.zeros((), dtype=torch.bool)]
    step_unless(flags[0], optimizer)
    assert decides_on_device(optimizer)
    with SyncCensus() as census:
        for flag in flags:
            step_unless(flag, optimizer)
    assert census.table() == []


@pytest.mark.parametrize('name', ON_HOST)
def test_state_on_the_host_costs_one_synchronization(name: str) -> None:
    params = parameters()
    optimizer = OPTIMIZERS[name](params)
    set_gradients(params, 3, bad=False)
    step_unless(torch.zeros(()), optimizer)
    with SyncCensus() as census:
        step_unless(torch.zeros(()), optimizer)
    assert [wait.kind for wait in census.waits] == ['scalar read']


def test_decides_on_device_only_if_all_state_is_there() -> None:
    """Adam on CUDA has its step count on the host, unless it is `capturable`."""
    param = nn.Parameter(torch.ones(2, device='meta'))
    optimizer = torch.optim.Adam([param])
    optimizer.state[param] = dict(step=torch.zeros((), device='meta'), exp_avg=param.detach())
    assert decides_on_device(optimizer)
    optimizer.state[param]['step'] = torch.zeros(())
    assert not decides_on_device(optimizer)
    optimizer.state[param]['step'] = 3
    assert not decides_on_device(optimizer)
    fused = torch.optim.Adam([nn.Parameter(torch.ones(2))], fused=True)
    assert decides_on_device(fused)
    optimizer = torch.optim.SGD([param, nn.Parameter(torch.ones(2))])
    assert not decides_on_device(optimizer)


def test_frozen_parameters_and_empty_state_are_ignored() -> None:
    param, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device='meta'))
    optimizer = torch.optim.SGD([param, frozen], lr=0.1, momentum=0.9)
    param.grad = torch.ones(2)
    step_unless(torch.zeros(()), optimizer)
    optimizer.state[frozen]['momentum_buffer'] = None  # as older versions of torch have it
    with SyncCensus() as census:
        step_unless(torch.zeros(()), optimizer)
    assert census.table() == []
    assert param.tolist() == pytest.approx([0.71, 0.71])


def test_nested_optimizer_is_decided_on_the_host() -> None:
    class Wraps(torch.optim.Optimizer):
        """An optimizer without state that wraps another, as ZeroRedundancyOptimizer."""

        def __init__(self, params: list) -> None:
            super().__init__(params, {})
            self.within = torch.optim.SGD(params, lr=0.1, momentum=0.9)

        def step(self) -> None:
            self.within.step()

    params = parameters()
    optimizer = Wraps(params)
    for step, bad in enumerate((False, True)):
        set_gradients(params, step, bad)
        before = values(optimizer.within)
        step_unless(torch.tensor(float(bad)), optimizer)
    assert not decides_on_device(optimizer)
    assert values(optimizer.within) == before


def test_step_that_takes_the_scaler_is_not_fused() -> None:
    class TakesScaler(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure: Any = None, grad_scaler: Any = None) -> None:
            super().step(closure)

    params = parameters()
    optimizer = TakesScaler(params, lr=0.1)
    set_gradients(params, 0, bad=True)
    before = values(optimizer)
    step_unless(torch.ones(()), optimizer)
    assert values(optimizer) == before


def test_arguments_and_result_are_passed_on() -> None:
    for name in ('sgd', 'adamw fused', 'rebinds'):
        params = parameters()
        optimizer = OPTIMIZERS[name](params)
        if name == 'rebinds':
            assert step_unless(torch.zeros(()), optimizer) is None
            continue
        assert step_unless(torch.zeros(()), optimizer, lambda: 5.0) == 5.0
        assert step_unless(torch.zeros(()), optimizer, closure=lambda: 6.0) == 6.0


def test_failed_fused_step_removes_its_flag() -> None:
    params = parameters()
    optimizer = OPTIMIZERS['sgd fused'](params)

    def fails() -> None:
        raise RuntimeError('on purpose')

    with pytest.raises(RuntimeError, match='on purpose'):
        step_unless(torch.ones(()), optimizer, fails)
    assert not hasattr(optimizer, 'found_inf')
    assert not hasattr(optimizer, 'grad_scale')


def scaled_run(scaler: Any, build: Callable, overflows: tuple[int, ...]) -> tuple[list, list]:
    params = parameters()[:3]
    optimizer = build(params)
    seen, scales = [], []
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(sum((param * param).sum() for param in params)).backward()
        if step in overflows:
            params[0].grad[0, 0] = float('inf')
        scaler.step(optimizer)
        scaler.update()
        seen.append([param.tolist() for param in params])
        scales.append(scaler.get_scale())
    return seen, scales


@pytest.mark.parametrize('overflows', [(), (0, 1, 5)])
@pytest.mark.parametrize('name', ['sgd', 'sgd dampening', 'adamw amsgrad', 'adamw fused'])
def test_scaler_equals_that_of_torch(name: str, overflows: tuple[int, ...]) -> None:
    options = dict(init_scale=8.0, growth_interval=2)
    ours = scaled_run(GuardedGradScaler('cpu', **options), OPTIMIZERS[name], overflows)
    stock = scaled_run(torch.amp.GradScaler('cpu', **options), OPTIMIZERS[name], overflows)
    assert ours == stock
    assert (min(ours[1]) < 8.0) == bool(overflows)


def test_fused_momentum_after_first_overflow_is_initialized() -> None:
    """torch's scaler leaves the momentum uninitialized if the first step overflows."""
    start = (0, 1)
    fused = scaled_run(GuardedGradScaler('cpu'), OPTIMIZERS['sgd fused'], start)
    other = scaled_run(
        GuardedGradScaler('cpu'),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        start,
    )
    for one, two in zip(fused[0], other[0]):
        for some, same in zip(one, two):
            torch.testing.assert_close(torch.tensor(some), torch.tensor(same))


@pytest.mark.parametrize(
    'name', ['sgd momentum', 'adamw amsgrad', 'adamw fused', 'sgd fused plain']
)
def test_scaler_does_not_synchronize(name: str) -> None:
    params = parameters()[:3]
    optimizer, scaler = OPTIMIZERS[name](params), GuardedGradScaler('cpu')
    for step in range(3):
        optimizer.zero_grad()
        with SyncCensus() as census:
            scaler.scale(sum((param * param).sum() for param in params)).backward()
            if step == 2:
                params[0].grad += float('inf')
            scaler.step(optimizer)
            scaler.update()
        if step:
            assert census.table() == []


def test_disabled_scaler_updates() -> None:
    params = parameters()
    optimizer = OPTIMIZERS['sgd fused'](params)
    set_gradients(params, 0, bad=False)
    before = values(optimizer)
    GuardedGradScaler('cpu', enabled=False).step(optimizer)
    assert values(optimizer) != before
