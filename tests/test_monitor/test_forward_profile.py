"""Shares of the forward pass, by a clock that moves only while a part works."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmtempo.device.event_timer import TimingEvents
from mmtempo.monitor.forward_profile import MOST_FLYING, REST, ForwardProfile, Stage
from mmtempo.utils.modules import find_modules
from tests.test_monitor.test_step_timer import Separate, compiling
from tests.testing.processes import SPAWN, in_child
from tests.testing.timing import DEVICE, LateDevice

NAMES = ['backbone', 'neck', 'head']


def hooks_of(model: nn.Module) -> int:
    return sum(
        len(hooks)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
    )


class Clock:
    """In milliseconds, given out in nanoseconds."""

    now = 0.0

    def __call__(self) -> int:
        return round(self.now * 1e6)


class Work(nn.Module):
    """Takes its time; what it holds works within it."""

    def __init__(self, clock: Any, time: float, **parts: nn.Module) -> None:
        super().__init__()
        self.clock, self.time = clock, time
        self.weight = nn.Parameter(torch.ones(1))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.time
        for part in self.children():
            x = part(x)
        return x * self.weight


class Model(Work):
    """Six milliseconds in three parts, and four of its own."""

    def __init__(self, clock: Any, **parts: nn.Module) -> None:
        super().__init__(clock, 4)
        parts = dict(backbone=Work(clock, 3), neck=Work(clock, 2), head=Work(clock, 1), **parts)
        for name, part in parts.items():
            self.add_module(name, part)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def profile_of(
    model: nn.Module, names: Any = NAMES, clock: Any = None, **options: Any
) -> ForwardProfile:
    clock = clock or model.clock
    profile = ForwardProfile(model, find_modules(model, names), clock=clock, **options)
    profile.start()
    return profile


def train(model: nn.Module, profile: ForwardProfile, times: int = 1, **how: Any) -> None:
    for _ in range(times):
        model(torch.ones(1), **how).backward()
        profile.end_iteration()


def taken(profile: ForwardProfile) -> dict[str, tuple[float, float]]:
    """Calls and milliseconds in an iteration."""
    return {
        stage.name: (stage.calls, pytest.approx(stage.seconds * 1000)) for stage in profile.result()
    }


def test_parts_of_a_model(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    train(model, profile, 3)
    clock.now += 1000
    profile.close()
    assert profile.result() == [
        Stage('backbone', 'Work', 1, pytest.approx(0.003), pytest.approx(0.3), None),
        Stage('neck', 'Work', 1, pytest.approx(0.002), pytest.approx(0.2), None),
        Stage('head', 'Work', 1, pytest.approx(0.001), pytest.approx(0.1), None),
    ]
    assert profile.iterations == 3
    assert profile.unseen() == []


def shares(profile: ForwardProfile, *names: str) -> list[float]:
    """Of these parts, and of what all parts leave."""
    by_name = {stage.name: stage.share for stage in profile.result()}
    return [*(by_name[name] for name in names), profile.rest().share]


def test_what_parts_leave_of_the_forward_pass(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    assert profile.rest() is None
    train(model, profile, 3)
    clock.now += 1000
    assert profile.rest() == Stage(REST, 'Model', 1, pytest.approx(0.004), pytest.approx(0.4), None)
    assert sum(shares(profile, *NAMES)) == pytest.approx(1)


def test_the_rest_counts_parts_within_others_once(clock: Clock) -> None:
    model = Model(clock, last=Work(clock, 1, inner=Work(clock, 5, innermost=Work(clock, 4))))
    profile = profile_of(model, ['last.inner.innermost', 'last', 'head', 'last.inner'])
    train(model, profile, 2)
    assert profile.rest().seconds == pytest.approx(0.004 + 0.003 + 0.002)
    assert sum(shares(profile, 'last', 'head')) == pytest.approx(1)
    inner = profile_of(model, ['last.inner.innermost', 'head'])
    train(model, inner)
    assert inner.rest().seconds == pytest.approx(0.020 - 0.004 - 0.001)


def test_the_rest_of_one_that_is_known_by_two_names(clock: Clock) -> None:
    model = Model(clock)
    model.neck = model.backbone
    profile = profile_of(model)
    train(model, profile)
    assert profile.rest().seconds == pytest.approx(0.004)


def test_the_rest_of_a_head_whose_forward_pass_is_not_called(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.0.second', 'heads.0', 'backbone', 'heads.1'])
    train(model, profile, 2)
    # Of each head, what lies before its first child and behind its loss.
    assert profile.rest().seconds == pytest.approx((7 + 2 * (100 + 20 + 100)) / 1000)
    assert sum(shares(profile, 'backbone', 'heads.0', 'heads.1')) == pytest.approx(1)
    assert profile.seen_by_children() == ['heads.0', 'heads.1']


def test_what_was_never_called_as_a_module(clock: Clock) -> None:
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


def test_the_inner_part_is_the_outer_ones_as_well(clock: Clock) -> None:
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


def test_a_part_that_is_called_several_times(clock: Clock) -> None:
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


def test_a_part_that_calls_itself(clock: Clock) -> None:
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


def test_iterations_in_which_a_part_is_not_called(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    profile.end_iteration()  # nothing at all is no iteration
    train(model, profile)
    model.head = None
    train(model, profile)
    assert profile.iterations == 2
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(0.5, 0.5))


def test_an_evaluation_does_not_count(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    train(model, profile)
    model.eval()
    for _ in range(5):
        model(torch.ones(1))
    model.train()
    model.backbone.eval()  # a part that is frozen is one of the training
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


def test_a_part_that_is_called_outside_of_the_forward_pass(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    model.head(torch.ones(1))
    train(model, profile)
    assert taken(profile)['head'] == (1, 1)


@pytest.mark.parametrize('reentrant', [True, False])
def test_what_checkpointing_runs_again_does_not_count(reentrant: bool, clock: Clock) -> None:
    class Checkpointed(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.clock.now += 4
            x = checkpoint(self.backbone, x.requires_grad_(), use_reentrant=reentrant)
            x = checkpoint(self.neck, x, use_reentrant=reentrant)
            return self.head(x)

    model = Checkpointed(clock)
    profile = profile_of(model)
    train(model, profile, 2)
    assert clock.now == 2 * (10 + 5)  # it did run again
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))
    assert profile.result()[0].share == pytest.approx(0.3)


def test_a_part_that_fails(clock: Clock) -> None:
    """Caught within the model, caught outside of it, and what no hook gets to see."""

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


class Head(Work):
    """As mmseg's: nobody calls it, and its own layers and its loss are called."""

    calls_itself = False

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 100  # before the first child: nobody can see it
        x = self(x) if self.calls_itself else self.forward(x)
        self.clock.now += 10
        x = self.criteria[0](x)
        self.clock.now += 100
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 20
        x = self.first(x)
        self.clock.now += 1
        return self.second(x)


class Segmentor(Work):
    def __init__(self, clock: Any) -> None:
        super().__init__(clock, 0)
        self.backbone = Work(clock, 1000)
        self.heads = nn.ModuleList(self.head() for _ in range(2))

    def head(self) -> Head:
        parts: dict[str, nn.Module] = dict(first=Work(self.clock, 2), second=Work(self.clock, 3))
        parts['criteria'] = nn.ModuleList([Work(self.clock, 4)])
        return Head(self.clock, 0, **parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.backbone(x)
        self.clock.now += 7  # between two parts: nobody's
        return self.heads[0].loss(x) + self.heads[1].loss(x)


def test_a_head_whose_forward_pass_is_not_called(clock: Clock) -> None:
    """It lasts from its first child to the end of its loss."""
    model = Segmentor(clock)
    profile = profile_of(model, 'auto')
    train(model, profile, 2)
    each = 2 + 1 + 3 + 10 + 4
    assert taken(profile) == {
        'backbone': (1, 1000),
        'heads.0': (1, each),
        'heads.1': (1, each),
    }


def test_a_head_whose_loss_is_called_behind_it(clock: Clock) -> None:
    model = Segmentor(clock)
    for head in model.heads:
        head.calls_itself = True
    profile = profile_of(model, ['heads'])
    train(model, profile, 2)
    each = 20 + 2 + 1 + 3 + 10 + 4
    assert taken(profile) == {'heads.0': (1, each), 'heads.1': (1, each)}


def test_children_of_a_part_that_are_named_themselves(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.0.second', 'heads.0', 'heads.0.criteria'])
    train(model, profile)
    assert taken(profile) == {
        'heads.0.second': (1, 3),
        'heads.0': (1, 20),
        'heads.0.criteria.0': (1, 4),
    }


def test_what_comes_between_two_children_is_no_part_of_theirs(clock: Clock) -> None:
    class Between(Segmentor):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.heads[0].first(x)
            return self.heads[0].second(self.backbone(x))

    model = Between(clock)
    profile = profile_of(model, 'auto')
    train(model, profile)
    train(model, profile)
    assert taken(profile) == {'backbone': (1, 1000), 'heads.0': (2, 5)}


def test_the_end_of_one_pass_is_not_the_beginning_of_the_next(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.1'])
    for _ in range(2):
        model(torch.ones(1))
        clock.now += 500
    profile.end_iteration()
    assert taken(profile) == {'heads.1': (2, 2 * 20)}


def test_an_interrupt_within_a_part_is_forgotten(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, 'auto')

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.heads[1].second.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1))
    profile.end_iteration()
    handle.remove()
    train(model, profile)
    assert taken(profile) == {'backbone': (1, 1000), 'heads.0': (1, 20), 'heads.1': (1, 20)}


def test_a_wrapper_that_is_never_called(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(Separate(model), NAMES, clock)
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


def test_hooks_are_taken_away(clock: Clock) -> None:
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


def test_a_copy_of_the_model_is_not_measured(clock: Clock) -> None:
    model = Model(clock)
    profile = profile_of(model)
    copy.deepcopy(model)(torch.ones(1))
    train(model, profile)
    assert taken(profile) == dict(backbone=(1, 3), neck=(1, 2), head=(1, 1))


class OnDevice:
    """A clock on the host that stands still while the device is given work."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device

    def __call__(self) -> int:
        return 0

    @property
    def now(self) -> float:
        return self.device.given

    @now.setter
    def now(self, value: float) -> None:
        self.device.given = value


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    return LateDevice(monkeypatch)


def device_times(profile: ForwardProfile) -> dict[str, Any]:
    return {
        stage.name: stage.device_seconds and pytest.approx(stage.device_seconds * 1000)
        for stage in profile.result()
    }


def test_the_devices_time(device: LateDevice) -> None:
    model = Segmentor(OnDevice(device))
    profile = profile_of(model, 'auto', events=TimingEvents.of(DEVICE))
    train(model, profile, 3)
    assert device_times(profile) == {'backbone': None, 'heads.0': None, 'heads.1': None}
    device.catch_up()
    assert device_times(profile) == {'backbone': 1000, 'heads.0': 20, 'heads.1': 20}
    stages = profile.result()
    whole = 1000 + 7 + 2 * (100 + 20 + 20 + 100)
    assert [stage.share for stage in stages] == pytest.approx(
        [1000 / whole, 20 / whole, 20 / whole]
    )
    assert [stage.seconds for stage in stages] == [0, 0, 0]
    rest = profile.rest()
    assert rest.device_seconds == pytest.approx((7 + 2 * (100 + 20 + 100)) / 1000)
    assert rest.share + sum(stage.share for stage in stages) == pytest.approx(1)
    assert rest.seconds == 0


def test_parts_that_a_device_does_side_by_side_leave_no_less_than_nothing(
    device: LateDevice,
) -> None:
    class Streams(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.backbone(x)
            self.clock.now -= 3  # the next one has begun together with it
            return self.neck(x)

    model = Streams(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))
    train(model, profile)
    device.catch_up()
    assert device_times(profile) == dict(backbone=3, neck=2)
    assert profile.rest()[-2:] == (0, 0)


def test_a_device_that_is_late(device: LateDevice) -> None:
    """It is read when it has got there; too far behind, iterations are left to the host."""
    model = Model(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))
    each = 2 * 4
    train(model, profile, MOST_FLYING + 3)
    assert device.recorded == MOST_FLYING * each
    device.catch_up(each + 1)
    assert device_times(profile) == dict(backbone=3, neck=2, head=1)
    device.catch_up()
    train(model, profile)  # begun before there was room
    assert device.recorded == MOST_FLYING * each
    train(model, profile)
    assert device.recorded == (MOST_FLYING + 1) * each
    assert device.created == MOST_FLYING * each
    profile.close()
    device.catch_up()
    assert device_times(profile) == dict(backbone=3, neck=2, head=1)
    assert profile.iterations == MOST_FLYING + 5


def test_events_of_passes_that_have_failed_are_used_again(device: LateDevice) -> None:
    model = Model(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.neck.register_forward_pre_hook(interrupt)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1))
        device.catch_up()
        profile.end_iteration()
    handle.remove()
    train(model, profile)
    device.catch_up()
    profile.end_iteration()
    assert device.created == 8
    assert device_times(profile)['head'] == 1


def test_found_by_name(clock: Clock) -> None:
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
def test_a_name_that_is_not_there(name: str, clock: Clock) -> None:
    key = 'custom_hooks.ThroughputMonitorHook.stage_profile.modules'
    with pytest.raises(ValueError, match=key) as caught:
        find_modules(Segmentor(clock), ['backbone', name], key)
    text = str(caught.value)
    assert f'Segmentor has no module {name!r}' in text
    assert 'backbone, heads' in text
    assert ('did you mean backbone?' in text) == (name == 'backbon')


@pytest.mark.parametrize('names', ['backbone', [3], ['backbone', None]])
def test_what_is_no_name(names: Any, clock: Clock) -> None:
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
    stages = profile.result()
    return {s.name: s.seconds for s in stages}, hooks_of(model), [s.type for s in stages]


def test_distributed(tmp_path: Path) -> None:
    seconds, hooks, types = in_child(under_ddp, str(tmp_path), context=SPAWN)
    assert seconds == pytest.approx(dict(backbone=0.003, neck=0.002, head=0.001))
    assert hooks == 0
    assert types == ['Work'] * 3


class Ticking:
    """A clock that moves on by one millisecond whenever it is asked."""

    now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x).relu()


class Plain(nn.Module):
    """Parts that can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone: Any = Layer()
        self.head: Any = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


@pytest.fixture
def graphs() -> Iterator[list]:
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


@pytest.mark.parametrize('early', [True, False])
@pytest.mark.parametrize('how', ['wrapped', 'its forward', 'in place', 'the model'])
def test_parts_that_are_compiled(how: str, early: bool, graphs: list) -> None:
    """Nothing breaks, nothing is compiled again, and no clock gets into a graph."""
    model, options = Plain(), dict(backend=compiling(graphs), fullgraph=True)
    if how == 'wrapped':
        model.backbone = torch.compile(model.backbone, **options)
    elif how == 'its forward':
        model.backbone.forward = torch.compile(model.backbone.forward, **options)
    elif how == 'in place':
        model.backbone.compile(**options)
    else:
        model.forward = torch.compile(model.forward, **options)
    if not early:
        model(torch.ones(1)).backward()
    clock = Ticking()
    profile = profile_of(model, ['backbone', 'head'], clock)
    train(model, profile, 3)
    profile.close()
    model(torch.ones(1)).backward()
    hidden = dict(zip(('in place', 'the model'), (['backbone'], ['backbone', 'head'])))
    assert profile.unseen() == hidden.get(how, [])
    assert profile.iterations == 3
    seen = 2 - len(profile.unseen())
    assert clock.now == 3 * (2 + 2 * seen) * 1_000_000
    types = [stage.type for stage in profile.result()]
    assert types == ['Layer', 'Linear'][len(profile.unseen()) :]
    assert len(graphs) == 1 or early
