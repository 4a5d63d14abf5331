"""Hooks are called as by the runner, and the time of each is measured.

Also covers `mmtempo.monitor.hook_calls`.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner

from mmtempo.monitor.hook_calls import call_hooks, timers
from mmtempo.monitor.hook_timer import HookTimer, add_edges, remove_edges
from mmtempo.timing.timeline import Timeline

called: list[str] = []


class Clock:
    """Clock in nanoseconds that only `work` advances."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


clock = Clock()


def work(name: str, nanoseconds: int) -> None:
    called.append(name)
    clock.now += nanoseconds


class Quick(Hook):
    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        work('quick before', 2)

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        work('quick after', 3)


class Slow(Hook):
    def _after_iter(self, *args: Any, **kwargs: Any) -> None:
        work('slow', 50)


class Idle(Hook):
    """Hook that implements none of the measured hook points."""

    def before_run(self, runner: Any) -> None:
        pass


class Rare(Hook):
    def before_train_epoch(self, runner: Any) -> None:
        work('rare', 7)


class Talking(LoggerHook):
    def __init__(self) -> None:
        pass

    def before_run(self, runner: Any) -> None:
        pass

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        work('talking', 11)


def bare_runner(*hooks: Hook, cls: type = Runner) -> Any:
    runner: Any = cls.__new__(cls)
    runner._hooks = list(hooks)
    return runner


def timed(runner: Any, **options: Any) -> tuple[HookTimer, Timeline]:
    called.clear()
    clock.now = 0
    timeline = Timeline('data', clock=clock)
    timer = HookTimer(timeline, **options)
    timers[runner] = timer
    return timer, timeline


def spent(timeline: Timeline) -> dict[str, int]:
    """Nanoseconds by phase."""
    timeline.begin()  # the first iteration gets all earlier timer
    timeline.end()
    seconds = timeline.last(1).spent[0]
    return {name: round(1e9 * one) for name, one in zip(timeline.names, seconds) if one}


def test_time_of_each_hook() -> None:
    runner = bare_runner(Quick(), Slow(), Idle(), Talking(), Quick())
    timer, timeline = timed(runner)
    clock.now += 100
    call_hooks(runner, 'before_train_iter', batch_idx=0)
    clock.now += 1000
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    both = ['quick before'] * 2
    assert called == [*both, 'quick after', 'slow', 'talking', 'quick after']
    assert spent(timeline) == {
        'data': 100, 'unexplained': 1000, 'hook:Quick': 5, 'hook:Slow': 50, 'hook:Talking': 11,
        'hook:Quick 2': 5,
    }  # fmt: skip
    assert timer.categories['hook:Talking'] == 'logging'
    assert timer.categories['hook:Slow'] == 'hook'


def test_hooks_are_called_as_stock_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = bare_runner(Quick(), Idle(), Slow(), Rare())
    before: dict[str, Any] = dict(batch_idx=3, data_batch='batch')
    after: dict[str, Any] = dict(before, outputs='outputs')
    monkeypatch.setattr(Slow, '_after_iter', lambda self, runner, **kwargs: called.append(kwargs))

    def calls() -> list:
        called.clear()
        call_hooks(runner, 'before_run')
        call_hooks(runner, 'before_train_epoch')
        call_hooks(runner, 'before_train_iter', **before)
        call_hooks(runner, 'after_train_iter', **after)
        return list(called)

    expected = calls()
    assert dict(after, mode='train') in expected
    timed(runner)
    assert calls() == expected
    timers.pop(runner)
    assert calls() == expected


def test_opening_and_closing_callbacks() -> None:
    runner = bare_runner(Quick())
    seen = []

    def see(runner: Any, arguments: dict) -> None:
        seen.append((len(called), runner, arguments))

    timed(runner, opening=dict(before_train_iter=see), closing=dict(before_train_iter=see))
    call_hooks(runner, 'before_train_iter', batch_idx=0)
    assert seen == [(0, runner, dict(batch_idx=0)), (1, runner, dict(batch_idx=0))]


def test_hook_registered_later_is_called() -> None:
    runner = bare_runner(Quick())
    timed(runner)
    call_hooks(runner, 'before_train_iter')
    runner._hooks.insert(0, Slow())
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    runner._hooks = [Talking()]
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    runner._hooks[0] = Quick()
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    assert called == ['quick before', 'slow', 'quick after', 'talking', 'quick after']


def test_duck_typed_hook_is_called_where_it_has_a_method() -> None:
    class Duck:
        def after_train_iter(self, runner: Any, batch_idx: int) -> None:
            called.append('duck')

    duck: Any = Duck()
    runner = bare_runner(duck)
    timed(runner)
    call_hooks(runner, 'before_train_iter', batch_idx=0)
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    assert called == ['duck']


def test_instance_method_of_a_hook_is_called() -> None:
    hook: Any = Idle()
    hook.before_train_iter = lambda *args, **kwargs: called.append('mine')
    runner = bare_runner(hook)
    timed(runner)
    call_hooks(runner, 'before_train_iter')
    assert called == ['mine']


def test_type_error_names_the_hook() -> None:
    class Wrong(Hook):
        def before_train_iter(self, runner: Any) -> None:  # type: ignore[override]
            pass

    runner = bare_runner(Wrong())
    texts = []
    for _ in range(2):
        with pytest.raises(TypeError, match="unexpected keyword argument 'batch_idx' in ") as error:
            call_hooks(runner, 'before_train_iter', batch_idx=0)
        texts.append(str(error.value))
        timed(runner)
    assert texts == [texts[0]] * 2


def test_time_of_a_hook_of_epochs_is_its_own() -> None:
    """Not of the next hook, which may do nothing at this hook point."""
    runner = bare_runner(Rare(), Quick())
    _, timeline = timed(runner)
    call_hooks(runner, 'before_train_epoch')
    call_hooks(runner, 'before_train_iter', batch_idx=0)
    assert called == ['rare', 'quick before']
    phases = [timeline.names[phase] for phase in timeline.log[::2]]
    assert phases == ['data', 'unexplained', 'hook:Rare', 'data', 'hook:Quick']


def test_stock_loop_has_one_phase_for_all_hooks() -> None:
    runner = bare_runner(Quick(), Slow())
    seen = []

    def see(runner: Any, arguments: dict) -> None:
        seen.append((len(called), runner, arguments))

    points = dict(after_train_iter=see)
    timer, timeline = timed(runner, opening=points, closing=points)
    add_edges(runner)
    clock.now += 100
    runner.call_hook('before_train_iter', batch_idx=0)
    runner.call_hook('after_train_iter', batch_idx=0)
    assert called == ['quick before', 'quick after', 'slow']
    assert seen == [(1, runner, dict(batch_idx=0)), (3, runner, dict(batch_idx=0))]
    assert spent(timeline) == {'data': 100, 'hooks': 55}
    assert timer.categories['hooks'] == 'hook'


def test_edges_do_nothing_where_hooks_are_told_apart() -> None:
    runner = bare_runner(Quick(), Slow())
    seen = []
    points = dict(after_train_iter=lambda *_: seen.append(len(called)))
    _, timeline = timed(runner, opening=points, closing=points)
    add_edges(runner)
    call_hooks(runner, 'after_train_iter', batch_idx=0)
    assert seen == [0, 2]
    assert spent(timeline) == {'hook:Quick': 3, 'hook:Slow': 50}


class Adds(Hook):
    """Hook that adds the edges, as the monitor's does."""

    def before_run(self, runner: Any) -> None:
        add_edges(runner)

    def after_run(self, runner: Any) -> None:
        remove_edges(runner)


class Runs(Hook):
    def before_run(self, runner: Any) -> None:
        called.append('before')

    def after_run(self, runner: Any) -> None:
        called.append('after')


def test_edges_are_first_and_last_until_they_are_removed() -> None:
    """No hook is called twice or left out when they come and go."""
    called.clear()
    hooks = [Runs(), Adds(), Runs(), Quick()]
    hooks[0].priority, hooks[-1].priority = 'VERY_HIGH', 'VERY_LOW'
    runner = bare_runner(*hooks)
    for _ in range(2):
        runner.call_hook('before_run')
        assert runner.hooks[1:-1] == hooks
    runner.call_hook('after_run')
    assert runner.hooks == hooks
    assert called == [*['before'] * 4, *['after'] * 2]
    runner.call_hook('after_run')
    assert runner.hooks == hooks


class Own(Runner):
    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        called.append('own')
        super().call_hook(fn_name, **kwargs)


def test_runner_class_that_overrides_call_hook() -> None:
    runner = bare_runner(Quick(), cls=Own)
    _, timeline = timed(runner)
    add_edges(runner)
    call_hooks(runner, 'before_train_iter')
    assert called == ['own', 'quick before']
    assert spent(timeline) == {'hooks': 2}


def test_runner_with_a_replaced_call_hook() -> None:
    runner = bare_runner(Quick())
    theirs = runner.call_hook

    def traced(name: str, **kwargs: Any) -> None:
        called.append(f'traced {name}')
        theirs(name, **kwargs)

    runner.call_hook = traced
    _, timeline = timed(runner)
    add_edges(runner)
    call_hooks(runner, 'before_train_iter')
    call_hooks(runner, 'before_run')
    assert called == ['traced before_train_iter', 'quick before', 'traced before_run']
    assert spent(timeline) == {'hooks': 2}
    timers.pop(runner)
    assert runner.call_hook is traced


def test_timer_outlives_the_runner() -> None:
    """Also where a hook references the runner."""
    hook: Any = Quick()
    runner = hook.runner = bare_runner(hook)
    timer, _ = timed(runner)
    add_edges(runner)
    call_hooks(runner, 'before_train_iter')
    gone = weakref.ref(runner)
    del runner, hook
    gc.collect()
    assert gone() is None
    assert 'hook:Quick' in timer.categories


def test_no_time_is_noted_for_a_runner_that_is_not_observed() -> None:
    runner, other = bare_runner(Quick()), bare_runner(Quick())
    _, timeline = timed(runner)
    call_hooks(other, 'before_train_iter')
    timers.pop(runner)
    add_edges(runner)
    call_hooks(runner, 'before_train_iter')
    assert called == ['quick before'] * 2
    assert timeline.log == [0, 0]  # its start
