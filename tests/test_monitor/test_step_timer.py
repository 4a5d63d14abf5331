"""The parts of a training step, in their order, under everything that mmengine trains with."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmtempo.monitor.step_timer import StepTimer
from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper
from mmtempo.utils.modules import layers_of
from tests.testing.processes import SPAWN, in_child

BEFORE = ['to_device', 'forward']
STEP = [*BEFORE, 'backward', 'step']


class Toy(BaseModel):
    """A line; `losses` may be made infinite or an error."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        if self.factor == 0:
            raise ArithmeticError
        return dict(loss=self.line(inputs).square().mean() * self.factor)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


def batch() -> dict:
    return dict(inputs=torch.ones(2, 3))


class Said(list):
    """A timeline that knows in which order its phases were marked."""

    @property
    def log(self) -> Said:
        return self

    def phase(self, name: str) -> str:
        return name

    def clock(self) -> str:
        return ''

    def __iadd__(self, mark: Any) -> Said:  # type: ignore[misc]
        self.append(mark[0])
        return self


class Watched:
    """A model that trains, and what the watch has said of each step."""

    def __init__(self, model: Any, wrapper: Any, optimizers: list | None = None) -> None:
        self.model, self.wrapper = model, wrapper
        self.said: Any = Said()
        self.watch = StepTimer(self.said)
        assert self.watch.install(model, optimizers or [wrapper.optimizer])

    def step(self) -> list[str]:
        self.said.clear()
        self.watch.begin()
        self.model.train_step(batch(), self.wrapper)
        self.watch.end()
        return list(self.said)


def toy(wrapper: type = OptimWrapper, **options: Any) -> Watched:
    model = Toy()
    return Watched(model, wrapper(optimizer=sgd(model), **options))


def watched_in(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if 'forward' in vars(module)]


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_a_step(wrapper: type) -> None:
    watched = toy(wrapper, clip_grad=dict(max_norm=1.0))
    for _ in range(3):
        assert watched.step() == STEP


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_gradients_that_accumulate(wrapper: type) -> None:
    watched = toy(wrapper, accumulative_counts=2)
    for _ in range(2):
        assert watched.step() == [*BEFORE, 'backward']
        assert watched.step() == STEP


def test_mixed_precision() -> None:
    watched = toy(SparseAmpOptimWrapper, dtype='bfloat16')
    assert watched.step() == STEP
    watched = toy(SparseAmpOptimWrapper, dtype='float16')
    assert watched.step() == STEP


def test_an_update_that_a_scaler_leaves_out() -> None:
    """The optimizer is not asked for its step, so none is seen."""
    model = Toy()
    optimizer, scaler = sgd(model), torch.amp.GradScaler('cpu')

    def train_step(watched: Watched) -> list[str]:
        watched.said.clear()
        watched.watch.begin()
        scaler.scale(model(**model.data_preprocessor(batch(), True))['loss']).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        watched.watch.end()
        return list(watched.said)

    watched = Watched(model, None, [optimizer])
    model.factor = float('inf')
    assert train_step(watched) == [*BEFORE, 'backward']
    model.factor = 1.0
    assert train_step(watched) == STEP


class TwoOptimizers(Toy):
    """Two networks in turn; `calls` says whether the model is called, or only what it is of."""

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


def two_optimizers(**options: Any) -> Watched:
    model = TwoOptimizers()
    wrappers = {
        name: OptimWrapper(optimizer=sgd(getattr(model, name)), **options)
        for name in ('line', 'other')
    }
    optimizers = [wrapper.optimizer for wrapper in wrappers.values()]
    return Watched(model, OptimWrapperDict(**wrappers), optimizers)


def test_several_optimizers() -> None:
    watched = two_optimizers()
    turn = ['unexplained', 'forward', 'backward', 'step']
    assert watched.step() == ['to_device', *turn[1:], *turn, 'step']


def test_several_optimizers_that_accumulate() -> None:
    """No step lies between the calls, so it is the backward pass that lasts until the second."""
    watched = two_optimizers(accumulative_counts=2)
    turn = ['forward', 'backward']
    assert watched.step() == ['to_device', *turn, *turn]


@pytest.mark.parametrize('wrapper', [OptimWrapper, SparseOptimWrapper])
def test_several_batches_in_one_step(wrapper: type) -> None:
    """As where an iteration is an update: nothing of it is unexplained."""
    watched = toy(wrapper, accumulative_counts=3)
    for _ in range(2):
        watched.said.clear()
        watched.watch.begin()
        for _ in range(3):
            watched.model.train_step(batch(), watched.wrapper)
        watched.watch.end()
        turn = ['forward', 'backward']
        assert watched.said == ['to_device', *turn, *turn, *turn, 'step']


def test_a_model_that_is_not_called_as_a_whole() -> None:
    """Where its forward pass ends nobody can say."""
    watched = two_optimizers()
    watched.step()
    watched.model.calls = False
    both = 'forward and backward'
    assert watched.step() == [both, 'step', both, 'step', 'step']


def test_one_forward_pass_and_two_steps() -> None:
    model = Toy()
    optimizers = [sgd(model), sgd(model)]
    watched = Watched(model, None, optimizers)
    watched.watch.begin()
    model(**batch())['loss'].backward()
    for optimizer in optimizers:
        optimizer.step()
    watched.watch.end()
    turn = ['backward', 'step']
    assert watched.said == ['to_device', 'forward', *turn, *turn, 'step']


def test_only_between_begin_and_end() -> None:
    watched = toy()
    watched.step()
    watched.said.clear()
    assert not watched.watch.watching
    watched.model.train_step(batch(), watched.wrapper)
    watched.model.val_step(batch())
    watched.watch.end()
    assert watched.said == []
    assert watched.step() == STEP


def test_closed() -> None:
    watched = toy()
    optimizer = watched.wrapper.optimizer
    assert watched_in(watched.model) == [watched.model]
    for _ in range(2):
        watched.watch.close()
        assert not watched_in(watched.model)
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert watched.step() == []


def test_a_forward_of_its_own_is_left_as_it_was() -> None:
    """As mmengine's `compile` puts one there."""
    watched = toy()
    watched.watch.close()
    model = watched.model
    compiled = model.forward = functools.partial(model.forward)
    assert watched.watch.install(model, [watched.wrapper.optimizer])
    assert watched.step() == STEP
    watched.watch.close()
    assert model.forward is compiled


def test_a_forward_that_somebody_wraps_meanwhile_stays() -> None:
    watched, called = toy(), []
    ours = watched.model.forward

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return ours(*args, **kwargs)

    watched.model.forward = wrapped
    assert watched.step() == STEP
    watched.watch.close()
    assert watched.model.forward is wrapped
    assert watched.step() == []
    assert len(called) == 2


def test_what_a_forward_says_of_itself() -> None:
    """As tools ask that look for its arguments."""
    watched = toy()
    own, of_class = watched.model.forward, Toy.forward.__get__(watched.model)
    assert inspect.signature(own) == inspect.signature(of_class)
    assert own.__name__ == 'forward'


def test_two_watches() -> None:
    """As where a training is begun anew, and the first one's end comes late."""
    watched = toy()
    second = StepTimer(Said())  # type: ignore[arg-type]
    second.install(watched.model, [watched.wrapper.optimizer])
    watched.watch.close()
    assert watched_in(watched.model) == [watched.model]
    second.close()
    assert not watched_in(watched.model)


class Asks(Toy):
    """Calls somebody in the midst of its forward pass."""

    asks: Any = staticmethod(lambda: None)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        self.asks()
        return super().forward(inputs)


def test_a_step_that_ends_within_a_call() -> None:
    model = Asks()
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    model.asks = watched.watch.end
    assert watched.step() == ['to_device', 'forward and backward']


def test_copies_in_threads_are_not_watched() -> None:
    """Their parameters are others, and a forward of the first one's would take its own."""
    outer = nn.DataParallel(Toy())
    watch = StepTimer(Said())  # type: ignore[arg-type]
    assert watch.install(outer, [sgd(outer)])
    assert watched_in(outer) == [outer]


def test_installed_again() -> None:
    watched = toy()
    assert watched.watch.install(watched.model, [watched.wrapper.optimizer])
    assert watched_in(watched.model) == [watched.model]
    assert watched.step() == STEP


def test_a_model_that_has_failed() -> None:
    """In the step where the error is caught, and in the next one."""
    watched = toy()
    watched.model.factor = 0
    with pytest.raises(ArithmeticError):
        watched.step()
    assert watched.said == BEFORE
    watched.model.factor = 1
    assert watched.step() == STEP


def test_an_error_that_leaves_nothing_behind() -> None:
    """No hook is called after an interrupt: the next step begins afresh all the same."""
    watched = toy()

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = watched.model.line.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        watched.step()
    handle.remove()
    assert watched.step() == STEP


class Nested(Toy):
    """It prepares its batch itself, and calls itself."""

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> Any:
        if mode == 'loss':
            return self(**self.data_preprocessor(dict(inputs=inputs), True))
        return super().forward(inputs)


def test_calls_within_calls() -> None:
    model = Nested()
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    assert watched.step() == STEP


@pytest.mark.parametrize('kind', [torch.optim.LBFGS, torch.optim.SGD])
def test_an_optimizer_that_calls_the_model(kind: Any) -> None:
    model = Toy()
    optimizer = kind(model.parameters(), lr=0.1)
    if kind is torch.optim.LBFGS:
        optimizer = kind(model.parameters(), max_iter=1)
    watched = Watched(model, None, [optimizer])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**batch())['loss']
        loss.backward()
        return loss

    for _ in range(2):
        watched.said.clear()
        watched.watch.begin()
        optimizer.step(closure)
        watched.watch.end()
        assert watched.said == ['forward and backward', 'step', 'forward', 'step', 'step']
    watched.watch.close()
    assert not optimizer._optimizer_step_post_hooks


def test_other_hooks_are_within_the_part_that_they_belong_to() -> None:
    """A model's are outside its call; an optimizer's that came before are outside its step."""
    model, said = Toy(), []  # type: ignore[var-annotated]
    optimizer = sgd(model)

    def add_hooks(when: str) -> None:
        model.data_preprocessor.register_forward_pre_hook(lambda *_: said.append(f'{when}: data'))
        model.register_forward_pre_hook(lambda *_: said.append(f'{when}: model'))
        optimizer.register_step_pre_hook(lambda *_: said.append(f'{when}: fence'))

    add_hooks('before')
    watched = Watched(model, OptimWrapper(optimizer=optimizer))
    said = watched.said
    add_hooks('after')
    assert watched.step() == [
        *('before: data', 'after: data', 'before: model', 'after: model', 'to_device'),
        *('forward', 'before: fence', 'backward', 'after: fence', 'step'),
    ]


def under_ddp(folder: str) -> list[list[str]]:
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=0, world_size=1
    )
    model = MMDistributedDataParallel(module=Toy())
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    steps = [watched.step(), watched.step()]
    watched.said.clear()
    model.val_step(batch())
    watched.watch.close()
    steps.append(list(watched.said))
    torch.distributed.destroy_process_group()
    return steps


def test_distributed(tmp_path: Path) -> None:
    assert in_child(under_ddp, str(tmp_path), context=SPAWN) == [STEP, STEP, []]


class Separate(nn.Module):
    """Hands the step on, as MMSeparateDistributedDataParallel does: it is never called itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def train_step(self, *args: Any) -> Any:
        return self.module.train_step(*args)  # type: ignore[operator]


def test_a_wrapper_that_is_never_called() -> None:
    model = Separate(Toy())
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    assert watched.step() == STEP


def test_layers() -> None:
    inner = nn.Sequential(nn.Linear(1, 1))
    assert layers_of(inner) == [inner]
    outer = Separate(Separate(inner))
    assert layers_of(outer) == [outer, outer.module, inner]
    several = Separate(inner)
    several.add_module('more', nn.Identity())
    assert layers_of(several) == [several]


def test_a_copy_of_the_model_brings_no_other_watch(tmp_path: Path) -> None:
    """As EMAHook makes one, or a file: it is called in evaluations."""
    watched = toy()
    watched.watch.begin()
    torch.save(watched.model, tmp_path / 'model.pt')
    torch.load(tmp_path / 'model.pt', weights_only=False).val_step(batch())
    copied = copy.deepcopy(watched.model)
    copied.val_step(batch())
    assert watched.said == []
    with torch.no_grad():
        copied.line.weight.fill_(1.0)
        copied.line.bias.fill_(0.0)
    assert copied(**batch())['loss'].item() == 9.0  # its own parameters
    assert watched.step() == STEP


def test_it_lives_no_longer_than_the_training() -> None:
    """Also where nobody has closed it, as after an error."""
    watched = toy()
    watch = weakref.ref(watched.watch)
    del watched
    gc.collect()
    assert watch() is None


@pytest.fixture
def graphs() -> Iterator[list]:
    """Graphs that were compiled; the backend runs them as they are."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


def compiling(graphs: list) -> Any:
    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        graphs.append(graph)
        return graph.forward

    return backend


def test_a_step_that_is_compiled_gets_no_hooks(graphs: list) -> None:
    model = Toy()
    optimizer = sgd(model)
    # As mmengine's `compile` does.
    model.train_step = torch.compile(model.train_step, backend=compiling(graphs))
    said: Any = Said()
    for outer in (model, Separate(model)):
        watch = StepTimer(said)
        assert not watch.install(outer, [optimizer])
        assert not watched_in(model)
        assert not optimizer._optimizer_step_pre_hooks
        watch.begin()
        watch.end()
        assert said == ['train_step']  # one part, whatever it consists of
        said.clear()
        watch.close()
        watch.begin()
        watch.end()
        assert said == []


def test_a_forward_pass_that_is_compiled(graphs: list) -> None:
    model = Toy()
    model.forward = torch.compile(model.forward, backend=compiling(graphs), fullgraph=True)
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    for _ in range(2):
        assert watched.step() == STEP
    assert len(graphs) == 1


def test_a_model_that_is_compiled_in_place(graphs: list) -> None:
    """Its hooks are traced: nothing of ours gets into the graph, and nothing breaks it."""
    model = Toy()
    model.compile(backend=compiling(graphs), fullgraph=True)
    watched = Watched(model, OptimWrapper(optimizer=sgd(model)))
    both = ['forward and backward', 'step']
    for _ in range(2):
        assert watched.step() == both
    assert len(graphs) == 1
