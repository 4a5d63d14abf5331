"""Shares of modules in the forward pass, by a clock that only the modules advance."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmtempo.monitor.forward_profile import REST, ModuleTime
from mmtempo.utils.modules import find_modules
from tests.testing.processes import SPAWN, in_child
from tests.testing.profiled_models import (
    NAMES,
    Clock,
    Model,
    Segmentor,
    Work,
    hooks_of,
    profile_of,
    shares,
    taken,
    train,
)
from tests.testing.timed_steps import Separate


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_calls_seconds_and_shares_of_modules(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    train(model, profile, 3)
    clock.now += 1000
    profile.close()
    assert profile.result() == [
        ModuleTime('backbone', 'Work', 1, pytest.approx(0.003), pytest.approx(0.3), None),
        ModuleTime('neck', 'Work', 1, pytest.approx(0.002), pytest.approx(0.2), None),
        ModuleTime('head', 'Work', 1, pytest.approx(0.001), pytest.approx(0.1), None),
    ]
    assert profile.iterations == 3
    assert profile.unseen() == []


def test_rest_is_the_time_outside_of_modules(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    assert profile.rest() is None
    train(model, profile, 3)
    clock.now += 1000
    assert profile.rest() == ModuleTime(
        REST, 'Model', 1, pytest.approx(0.004), pytest.approx(0.4), None
    )
    assert sum(shares(profile, *NAMES)) == pytest.approx(1)


def test_rest_counts_nested_modules_once(clock: Clock) -> None:
    model = Model(clock, last=Work(clock, 1, inner=Work(clock, 5, innermost=Work(clock, 4))))
    profile = profile_of(model, ['last.inner.innermost', 'last', 'head', 'last.inner'])
    train(model, profile, 2)
    assert profile.rest().seconds == pytest.approx(0.004 + 0.003 + 0.002)
    assert sum(shares(profile, 'last', 'head')) == pytest.approx(1)
    inner = profile_of(model, ['last.inner.innermost', 'head'])
    train(model, inner)
    assert inner.rest().seconds == pytest.approx(0.020 - 0.004 - 0.001)


def test_rest_counts_a_module_with_two_names_once(clock: Clock) -> None:
    model = Model(clock)
    model.neck = model.backbone
    profile = profile_of(model)
    train(model, profile)
    assert profile.rest().seconds == pytest.approx(0.004)


def test_modules_never_called_are_unseen(clock: Clock) -> None:
    class Direct(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.clock.now += 4
            return self.head(self.neck.forward(x))

    model = Direct(clock)
    profile = profile_of(model)
    train(model, profile, 2)
    assert profile.unseen() == ['backbone', 'neck']
    assert profile.seen_by_children() == []
    assert profile.rest().seconds == pytest.approx(0.006)


def test_nested_modules_count_for_both(clock: Clock) -> None:
    model = Model(clock, last=Work(clock, 1, inner=Work(clock, 5, innermost=Work(clock, 7))))
    names = ['last.inner.innermost', 'last', 'head', 'last.inner']
    profile = profile_of(model, names)
    train(model, profile)
    assert taken(profile) == {
        'last.inner.innermost': (1, 7),
        'last': (1, 13),
        'head': (1, 1),
        'last.inner': (1, 12),
    }
    assert list(taken(profile)) == names


def test_module_called_several_times(clock: Clock) -> None:
    class Twice(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.clock.now += 1
            for part in (self.head, self.neck, self.head, self.head):
                x = part(x)
                self.clock.now += 1
            return x

    model = Twice(clock)
    profile = profile_of(model)
    train(model, profile, 2)
    assert taken(profile) == dict(neck=(1, 2), head=(3, 3))
    assert profile.unseen() == ['backbone']


def test_module_that_calls_itself(clock: Clock) -> None:
    class Recursive(Work):
        def forward(self, x: torch.Tensor, times: int = 3) -> torch.Tensor:
            self.clock.now += self.time
            return self(x, times - 1) if times else x * self.weight

    model = Model(clock, recursive=Recursive(clock, 2))
    profile = profile_of(model, ['recursive', 'head'])
    train(model, profile, 2)
    assert taken(profile) == dict(recursive=(4, 8), head=(1, 1))


def test_several_forward_passes_in_an_iteration(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    for _ in range(3):
        model(torch.ones(1))
        train(model, profile)
    assert profile.iterations == 3
    assert taken(profile) == dict(backbone=(2, 6), neck=(2, 4), head=(2, 2))
    assert profile.result()[0].share == pytest.approx(0.3)


def test_module_not_called_in_each_iteration(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    profile.end_iteration()  # without a forward pass it is no iteration
    train(model, profile)
    model.head = None
    train(model, profile)
    assert profile.iterations == 2
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(0.5, 0.5))


def test_evaluation_does_not_count(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    train(model, profile)
    model.eval()
    for _ in range(5):
        model(torch.ones(1))
    model.train()
    model.backbone.eval()  # a frozen module is still part of the training
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


def test_call_outside_of_the_forward_pass_does_not_count(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    model.head(torch.ones(1))
    train(model, profile)
    assert taken(profile)['head'] == (1, 1)


@pytest.mark.parametrize('reentrant', [True, False])
def test_recomputation_of_checkpointing_does_not_count(reentrant: bool, clock: Clock) -> None:
    class Checkpointed(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.clock.now += 4
            x = checkpoint(self.backbone, x.requires_grad_(), use_reentrant=reentrant)
            x = checkpoint(self.neck, x, use_reentrant=reentrant)
            return self.head(x)

    model = Checkpointed(clock)
    profile = profile_of(model)
    train(model, profile, 2)
    assert clock.now == 2 * (10 + 5)  # recomputed in the backward pass
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))
    assert profile.result()[0].share == pytest.approx(0.3)


def test_failed_modules_and_passes(clock: Clock) -> None:
    """Errors caught within the model, outside of it, and interrupts, which trigger no hook."""

    class Failing(Work):
        error: Any = ArithmeticError

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.clock.now += self.time
            if self.error:
                raise self.error
            return x

    class Careful(Model):
        catches: Any = ArithmeticError

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(self.catches):
                x = self.failing(x)
            return self.head(self.neck(x))

    model = Careful(clock, failing=Failing(clock, 5))
    profile = profile_of(model, ['failing', *NAMES])
    train(model, profile)
    assert taken(profile) == dict(failing=(1, 5), neck=(1, 2), head=(1, 1))
    model.catches = ()
    with pytest.raises(ArithmeticError):
        model(torch.ones(1))
    profile.end_iteration()
    assert taken(profile) == dict(failing=(1, 5), neck=(0.5, 1), head=(0.5, 0.5))
    model.failing.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1))
    profile.end_iteration()
    assert profile.iterations == 2
    model.failing.error = None
    train(model, profile, 2)
    assert taken(profile) == dict(failing=(1, 5), neck=(0.75, 1.5), head=(0.75, 0.75))


def test_wrapper_that_is_never_called(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(Separate(model), NAMES, clock)
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


def test_close_removes_all_hooks(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, 'auto')
    assert hooks_of(model) > 0
    profile.start()
    train(model, profile)
    before = profile.result()
    for _ in range(2):
        profile.close()
        assert hooks_of(model) == 0
    train(model, profile)
    assert profile.result() == before
    assert before[0].calls == 1


def test_copy_of_the_model_is_not_measured(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    copy.deepcopy(model)(torch.ones(1))
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


def test_modules_are_found_by_name(clock: Clock) -> None:
    model = Segmentor(clock)
    names = ['backbone', 'heads', 'heads.0.first']
    assert find_modules(model, names) == {
        'backbone': model.backbone,
        'heads.0': model.heads[0],
        'heads.1': model.heads[1],
        'heads.0.first': model.heads[0].first,
    }
    assert list(find_modules(model, 'auto')) == ['backbone', 'heads.0', 'heads.1']
    assert find_modules(nn.Linear(1, 1), 'auto') == {}
    nested = nn.Sequential(nn.ModuleDict(dict(a=nn.ModuleList([nn.Identity(), nn.ReLU()]))))
    assert list(find_modules(nested, 'auto')) == ['0.a.0', '0.a.1']


@pytest.mark.parametrize('name', ['backbon', 'heads.2', '', 'forward', 'heads.0.weight'])
def test_unknown_name_raises(name: str, clock: Clock) -> None:
    key = 'custom_hooks.ThroughputMonitorHook.stage_profile.modules'
    with pytest.raises(ValueError, match=key) as caught:
        find_modules(Segmentor(clock), ['backbone', name], key)
    text = str(caught.value)
    assert f'Segmentor has no module {name!r}' in text
    assert 'backbone, heads' in text
    assert ('did you mean backbone?' in text) == (name == 'backbon')


@pytest.mark.parametrize('names', ['backbone', [3], ['backbone', None]])
def test_names_of_a_wrong_type_raise(names: Any, clock: Clock) -> None:
    with pytest.raises(TypeError, match='stage_profile.modules: expected .* found'):
        find_modules(Segmentor(clock), names)


def under_ddp(folder: str) -> tuple[dict, int, list]:
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=0, world_size=1
    )
    clock = Clock()
    model = MMDistributedDataParallel(module=Model(clock))
    profile = profile_of(model, 'auto', clock)
    train(model, profile, 2)
    profile.close()
    torch.distributed.destroy_process_group()
    times = profile.result()
    return {one.name: one.seconds for one in times}, hooks_of(model), [one.type for one in times]


def test_distributed_model(tmp_path: Path) -> None:
    seconds, hooks, types = in_child(under_ddp, str(tmp_path), context=SPAWN)
    assert seconds == pytest.approx(dict(backbone=0.003, neck=0.002, head=0.001))
    assert hooks == 0
    assert types == ['Work'] * 3
