"""Parts of a training step in order, with all wrappers and optimizers of mmengine."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmtempo.monitor.step_timer import StepTimer
from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper
from mmtempo.utils.modules import layers_of
from tests.testing.processes import SPAWN, in_child
from tests.testing.timed_steps import (
    BEFORE,
    STEP,
    MarkLog,
    Separate,
    TimedModel,
    Toy,
    batch,
    hooked_in,
    sgd,
    toy,
)


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_step_has_four_parts(wrapper: type) -> None:
    timed = toy(wrapper, clip_grad=dict(max_norm=1.0))
    for _ in range(3):
        assert timed.step() == STEP


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_accumulating_iteration_has_no_step(wrapper: type) -> None:
    timed = toy(wrapper, accumulative_counts=2)
    for _ in range(2):
        assert timed.step() == [*BEFORE, 'backward']
        assert timed.step() == STEP


def test_mixed_precision_has_the_same_parts() -> None:
    timed = toy(SparseAmpOptimWrapper, dtype='bfloat16')
    assert timed.step() == STEP
    timed = toy(SparseAmpOptimWrapper, dtype='float16')
    assert timed.step() == STEP


def test_skipped_update_of_a_scaler_has_no_step() -> None:
    """The optimizer gets no step, so no part 'step' is marked."""
    model = Toy()
    optimizer, scaler = sgd(model), torch.amp.GradScaler('cpu')

    def train_step(timed: TimedModel) -> list[str]:
        timed.marks.clear()
        timed.timer.begin()
        scaler.scale(model(**model.data_preprocessor(batch(), True))['loss']).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        timed.timer.end()
        return list(timed.marks)

    timed = TimedModel(model, None, [optimizer])
    model.factor = float('inf')
    assert train_step(timed) == [*BEFORE, 'backward']
    model.factor = 1.0
    assert train_step(timed) == STEP


class TwoOptimizers(Toy):
    """Two networks in turn; with `calls` the model is called, otherwise only its layers."""

    calls = True

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(3, 1)

    def train_step(self, data: dict, optim_wrapper: Any) -> dict:
        inputs = self.data_preprocessor(data, True)
        for name in ('line', 'other'):
            loss = self(**inputs)['loss'] if self.calls else getattr(self, name)(inputs['inputs'])
            optim_wrapper[name].update_params(loss.sum())
        return {}


def two_optimizers(**options: Any) -> TimedModel:
    model = TwoOptimizers()
    wrappers = {
        name: OptimWrapper(optimizer=sgd(getattr(model, name)), **options)
        for name in ('line', 'other')
    }
    optimizers = [wrapper.optimizer for wrapper in wrappers.values()]
    return TimedModel(model, OptimWrapperDict(**wrappers), optimizers)


def test_several_optimizers_in_turn() -> None:
    timed = two_optimizers()
    turn = ['unexplained', 'forward', 'backward', 'step']
    assert timed.step() == ['to_device', *turn[1:], *turn, 'step']


def test_several_optimizers_that_accumulate() -> None:
    """Without a step between the calls, 'backward' lasts until the second call."""
    timed = two_optimizers(accumulative_counts=2)
    turn = ['forward', 'backward']
    assert timed.step() == ['to_device', *turn, *turn]


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_several_batches_in_one_step(wrapper: type) -> None:
    """As where an iteration is an update: no time is unexplained."""
    timed = toy(wrapper, accumulative_counts=3)
    for _ in range(2):
        timed.marks.clear()
        timed.timer.begin()
        for _ in range(3):
            timed.model.train_step(batch(), timed.wrapper)
        timed.timer.end()
        turn = ['forward', 'backward']
        assert timed.marks == ['to_device', *turn, *turn, *turn, 'step']


def test_model_that_is_not_called_has_one_part_before_the_step() -> None:
    """The end of its forward pass is not visible."""
    timed = two_optimizers()
    timed.step()
    timed.model.calls = False
    both = 'forward and backward'
    assert timed.step() == [both, 'step', both, 'step', 'step']


def test_one_forward_pass_and_two_steps() -> None:
    model = Toy()
    optimizers = [sgd(model), sgd(model)]
    timed = TimedModel(model, None, optimizers)
    timed.timer.begin()
    model(**batch())['loss'].backward()
    for optimizer in optimizers:
        optimizer.step()
    timed.timer.end()
    turn = ['backward', 'step']
    assert timed.marks == ['to_device', 'forward', *turn, *turn, 'step']


def test_timer_is_inactive_outside_of_a_step() -> None:
    timed = toy()
    timed.step()
    timed.marks.clear()
    assert not timed.timer.watching
    timed.model.train_step(batch(), timed.wrapper)
    timed.model.val_step(batch())
    timed.timer.end()
    assert timed.marks == []
    assert timed.step() == STEP


def test_close_removes_all_hooks() -> None:
    timed = toy()
    optimizer = timed.wrapper.optimizer
    assert hooked_in(timed.model) == [timed.model]
    for _ in range(2):
        timed.timer.close()
        assert not hooked_in(timed.model)
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert timed.step() == []


def test_instance_forward_is_timed_and_kept() -> None:
    """Such as mmengine's `compile` sets it."""
    model = Toy()
    compiled = model.forward = functools.partial(model.forward)
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    assert timed.step() == STEP
    assert model.forward is compiled
    timed.timer.close()
    assert model.forward is compiled


def test_later_wrapper_of_forward_is_kept() -> None:
    timed, called = toy(), []
    ours = timed.model.forward

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return ours(*args, **kwargs)

    timed.model.forward = wrapped
    assert timed.step() == STEP
    timed.timer.close()
    assert timed.model.forward is wrapped
    assert timed.step() == []
    assert len(called) == 2


def test_model_and_optimizer_get_no_attribute() -> None:
    model = Toy()
    optimizer = sgd(model)
    before = [set(vars(one)) for one in (model, optimizer)]
    timed = TimedModel(model, OptimWrapper(optimizer=optimizer))
    assert timed.step() == STEP
    assert [set(vars(one)) for one in (model, optimizer)] == before


def test_two_timers_on_one_model() -> None:
    """A training is restarted, and the first timer is closed late."""
    timed = toy()
    second = StepTimer(MarkLog())  # type: ignore[arg-type]
    second.install(timed.model, [timed.wrapper.optimizer])
    timed.timer.close()
    assert hooked_in(timed.model) == [timed.model]
    second.close()
    assert not hooked_in(timed.model)


class Asks(Toy):
    """Model that calls a function within its forward pass."""

    asks: Any = staticmethod(lambda: None)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        self.asks()
        return super().forward(inputs)


def test_step_may_end_within_a_call() -> None:
    model = Asks()
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    model.asks = timed.timer.end
    assert timed.step() == ['to_device', 'forward and backward']


def test_replicas_in_threads_are_not_timed() -> None:
    """Replicas share the hooks of their original."""
    outer = nn.DataParallel(Toy())
    timer = StepTimer(MarkLog())  # type: ignore[arg-type]
    assert timer.install(outer, [sgd(outer)])
    assert hooked_in(outer) == [outer]


def test_install_twice() -> None:
    timed = toy()
    assert timed.timer.install(timed.model, [timed.wrapper.optimizer])
    assert hooked_in(timed.model) == [timed.model]
    assert timed.step() == STEP


def test_failed_forward_pass_is_marked() -> None:
    """Also the step after the error is marked completely."""
    timed = toy()
    timed.model.factor = 0
    with pytest.raises(ArithmeticError):
        timed.step()
    assert timed.marks == BEFORE
    timed.model.factor = 1
    assert timed.step() == STEP


def test_interrupt_does_not_affect_the_next_step() -> None:
    """No hook is called after an interrupt, and the next step starts from the initial state."""
    timed = toy()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = timed.model.line.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        timed.step()
    handle.remove()
    assert timed.step() == STEP


class Nested(Toy):
    """Model that calls its preprocessor and itself in its forward pass."""

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        if mode == 'loss':
            return self(**self.data_preprocessor(dict(inputs=inputs), True))
        return super().forward(inputs)


def test_nested_calls_are_one_part() -> None:
    model = Nested()
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    assert timed.step() == STEP


@pytest.mark.parametrize('kind', [torch.optim.LBFGS, torch.optim.SGD])
def test_closure_that_calls_the_model(kind: Any) -> None:
    model = Toy()
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        optimizer = kind(model.parameters(), max_iter=1)
    timed = TimedModel(model, None, [optimizer])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch())['loss']
        loss.backward()
        return loss

    for _ in range(2):
        timed.marks.clear()
        timed.timer.begin()
        optimizer.step(closure)
        timed.timer.end()
        assert timed.marks == ['forward and backward', 'step', 'forward', 'step', 'step']
    timed.timer.close()
    assert not optimizer._optimizer_step_post_hooks


def test_order_of_marks_and_other_hooks() -> None:
    """Pre-hooks of the model are part of its call, earlier ones of the optimizer come first."""
    model, marks = Toy(), []  # type: ignore[var-annotated]
    optimizer = sgd(model)

    def add_hooks(when: str) -> None:
        model.data_preprocessor.register_forward_pre_hook(lambda *_: marks.append(f'{when}: data'))
        model.register_forward_pre_hook(lambda *_: marks.append(f'{when}: model'))
        optimizer.register_step_pre_hook(lambda *_: marks.append(f'{when}: fence'))

    add_hooks('before')
    timed = TimedModel(model, OptimWrapper(optimizer=optimizer))
    marks = timed.marks
    add_hooks('after')
    assert timed.step() == [
        *('before: data', 'after: data', 'to_device', 'before: model', 'after: model'),
        *('forward', 'before: fence', 'backward', 'after: fence', 'step'),
    ]


def under_ddp(folder: str) -> list[list[str]]:
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=0, world_size=1
    )
    model = MMDistributedDataParallel(module=Toy())
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    steps = [timed.step(), timed.step()]
    timed.marks.clear()
    model.val_step(batch())
    timed.timer.close()
    steps.append(list(timed.marks))
    torch.distributed.destroy_process_group()
    return steps


def test_distributed_model(tmp_path: Path) -> None:
    assert in_child(under_ddp, str(tmp_path), context=SPAWN) == [STEP, STEP, []]


def test_wrapper_that_is_never_called() -> None:
    model = Separate(Toy())
    timed = TimedModel(model, OptimWrapper(optimizer=sgd(model)))
    assert timed.step() == STEP


def test_layers_of_wrappers() -> None:
    inner = nn.Sequential(nn.Linear(1, 1))
    assert layers_of(inner) == [inner]
    outer = Separate(Separate(inner))
    assert layers_of(outer) == [outer, outer.module, inner]
    several = Separate(inner)
    several.add_module('more', nn.Identity())
    assert layers_of(several) == [several]


def test_copy_of_the_model_is_not_timed(tmp_path: Path) -> None:
    """As EMAHook copies it, or a file stores it: copies are called in evaluations."""
    timed = toy()
    timed.timer.begin()
    torch.save(timed.model, tmp_path / 'model.pt')
    torch.load(tmp_path / 'model.pt', weights_only=False).val_step(batch())
    copied = copy.deepcopy(timed.model)
    copied.val_step(batch())
    assert timed.marks == []
    with torch.no_grad():
        copied.line.weight.fill_(1.0)
        copied.line.bias.fill_(0.0)
    assert copied(**batch())['loss'].item() == 9.0  # the parameters of the copy
    assert timed.step() == STEP


def test_timer_is_released_with_the_model() -> None:
    """Also without `close`, as after an error."""
    timed = toy()
    timer = weakref.ref(timed.timer)
    del timed
    gc.collect()
    assert timer() is None
