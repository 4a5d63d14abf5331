"""Measure the share of each module in the forward pass of a model."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from mmtempo.device.event_timer import TimingEvents, seconds_between
from mmtempo.utils.modules import layers_of, opened

MOST_PENDING = 16  # iterations whose events the device may not have reached
REST = 'rest of the forward pass'


class ModuleTime(NamedTuple):
    """Time of a module in the forward pass, as a mean over iterations.

    Attributes:
        name: Name of the module.
        type: Class name of the module.
        calls: Calls per iteration.
        seconds: Seconds per iteration on the clock of the host.
        share: Share of the forward pass of the model, 0 to 1; on the clock of the device where
            its times are known.
        device_seconds: Seconds per iteration on the device; None where they are unknown.
    """

    name: str
    type: str
    calls: float
    seconds: float
    share: float
    device_seconds: float | None


@dataclass
class _Span:
    """Time from the start to the end of a module, in nanoseconds and as events."""

    start: int
    start_event: Any
    end: int | None = None
    end_event: Any = None


class _PendingEvents(NamedTuple):
    """Events of an iteration that the device may not have reached."""

    events: list[Any]
    times: list[tuple[_ModuleTimer, Any, Any]]

    def is_done(self) -> bool:
        """Return whether the device has reached all events."""
        return all(event.query() for event in reversed(self.events))


class _ModuleTimer:
    """Spans of one module in this iteration, and sums over earlier iterations."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.depth = self.calls = 0
        self.spans: list[_Span] = []
        self.total_calls = self.whole_calls = self.nanoseconds = 0
        self.device_seconds = 0.0

    def settle(self, counts: bool) -> list[_Span]:
        """End an iteration; return its spans, or none if the iteration does not count."""
        spans = [span for span in self.spans if counts and span.end is not None]
        self.nanoseconds += sum(span.end - span.start for span in spans if span.end is not None)
        # A module that is only called through its children has spans, but no calls.
        self.total_calls += (self.calls or len(spans)) if counts else 0
        self.whole_calls += self.calls if counts else 0
        self.depth, self.calls, self.spans = 0, 0, []
        return spans


class ForwardProfile:
    """Time of named modules in the forward pass during training.

    It adds forward hooks to the modules, and `close` removes them::

        start | iteration, end_iteration | iteration, end_iteration | ... close, result

    Only calls within the forward pass of the whole model in training mode count. Evaluations, and
    the recomputation of activation checkpointing in the backward pass, do not. A module within
    another named module counts for both.

    A span of a module is its forward pass. Direct children that are called after it, with no other
    named module in between, extend the span: the loss of a head belongs to the head. The `loss` of
    mmseg's heads calls `self.forward`, which triggers no hooks, so only the calls of children are
    seen: the span of such a module is from the start of its first child to the end of its last.

    The parts of a compiled module trigger no hooks. They have no result, and neither have modules
    that were never called; `unseen` names them. `rest` is the time outside of all modules. Only
    one thread is measured.

    Args:
        model: The model, which may be wrapped for distributed training.
        modules: Modules of the model by name; see `find_modules`.
        events: Events of the model's device. Defaults to None: only the clock of the host is read.
        clock: Clock in nanoseconds, `time.perf_counter_ns` by default.

    Attributes:
        iterations: Number of measured iterations.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: dict[str, nn.Module],
        events: TimingEvents | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.iterations = 0
        self._whole = _ModuleTimer(layers_of(model)[-1])
        # All named modules that are not within another one.
        self._outermost = _ModuleTimer(self._whole.module)
        self._timers = {name: _ModuleTimer(module) for name, module in modules.items()}
        self._clock = clock
        self._events = events
        self._recording = events is not None  # in this iteration
        self._used: list[Any] = []  # events of this iteration, to be reused
        self._pending: deque[_PendingEvents] = deque()
        self._device_iterations = 0
        self._handles: list[Any] = []
        self._running = 0  # named modules that are being called
        self._latest: _ModuleTimer | None = None  # last one that was not within another one

    def start(self) -> None:
        """Add the hooks to the modules."""
        self.close()
        self._hook(self._whole.module, self._begin_forward, self._end_forward)
        # Outer modules first, so that their span starts first where one call starts both.
        for name in sorted(self._timers, key=lambda name: name.count('.')):
            timer = self._timers[name]
            leave = functools.partial(self._leave, timer)
            self._hook(timer.module, functools.partial(self._enter, timer, True), leave)
            for _, child in opened(timer.module.named_children()):
                self._hook(child, functools.partial(self._enter, timer, False), leave)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def end_iteration(self) -> None:
        """End an iteration, unless nothing was measured since the last call.

        A forward pass without an end is dropped: after an interrupt, no hook is called.
        """
        counts = bool(self._whole.spans) and not self._whole.depth
        spans = [
            (timer, span)
            for timer in (self._whole, self._outermost, *self._timers.values())
            for span in timer.settle(counts)
        ]
        self.iterations += counts
        if self._events is not None:
            times = [(timer, span.start_event, span.end_event) for timer, span in spans]
            if self._recording:
                self._pending.append(_PendingEvents(self._used, times))
            self._used = []
            self._read_device()
            self._recording = len(self._pending) < MOST_PENDING

    def result(self) -> list[ModuleTime]:
        """Return the times of the modules that were called, in the given order of names."""
        self._read_device()
        return [
            self._mean(name, timer, timer.nanoseconds, timer.device_seconds)
            for name, timer in self._timers.items()
            if timer.total_calls
        ]

    def rest(self) -> ModuleTime | None:
        """Return the time of the forward pass outside of all modules; None without iterations.

        It complements the last `result`: device times read since then are not included.
        """
        if not self.iterations:
            return None
        whole, parts = self._whole, self._outermost
        nanoseconds = whole.nanoseconds - parts.nanoseconds
        # Modules on separate streams may take longer in sum than the model.
        device_seconds = max(0.0, whole.device_seconds - parts.device_seconds)
        return self._mean(REST, whole, nanoseconds, device_seconds)

    def unseen(self) -> list[str]:
        """Return the names of modules never called, or hidden inside of a compiled module."""
        return [name for name, timer in self._timers.items() if not timer.total_calls]

    def seen_by_children(self) -> list[str]:
        """Return the names of modules of which only children were called."""
        return [
            name
            for name, timer in self._timers.items()
            if timer.total_calls and not timer.whole_calls
        ]

    def _mean(
        self, name: str, timer: _ModuleTimer, nanoseconds: int, device_seconds: float
    ) -> ModuleTime:
        """Return means from sums over all iterations."""
        share = nanoseconds / max(1, self._whole.nanoseconds)
        each: float | None = None
        if self._device_iterations:
            each = device_seconds / self._device_iterations
            if self._whole.device_seconds:
                share = device_seconds / self._whole.device_seconds
        calls = timer.total_calls / self.iterations
        seconds = nanoseconds * 1e-9 / self.iterations
        return ModuleTime(name, _kind(timer.module), calls, seconds, share, each)

    def _hook(
        self, module: nn.Module, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        # A copy of the model, such as an EMA model, has these hooks as well: ignore its calls.
        def enter(called: nn.Module, *_: Any) -> None:
            if not torch.compiler.is_compiling() and called is module:
                before()

        def leave(called: nn.Module, *_: Any) -> None:
            if not torch.compiler.is_compiling() and called is module:
                after()

        self._handles += [
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        ]

    def _begin_forward(self) -> None:
        whole = self._whole
        if not whole.module.training:
            return
        whole.depth += 1
        if whole.depth == 1:
            whole.calls += 1
            whole.spans.append(self._begun())
            self._running, self._latest = 0, None

    def _end_forward(self) -> None:
        if self._whole.depth:
            self._whole.depth -= 1
            if not self._whole.depth:
                self._finish(self._whole.spans[-1])

    def _enter(self, timer: _ModuleTimer, is_whole: bool) -> None:
        """Handle the start of a call of a module, or of one of its children."""
        if not self._whole.depth:
            return
        timer.depth += 1
        timer.calls += is_whole
        if timer.depth > 1:
            return
        if not is_whole and timer is self._latest:
            timer.spans[-1].end = None
        else:
            timer.spans.append(self._begun())
            if not self._running:
                self._outermost.spans.append(timer.spans[-1])
        if not self._running:
            self._latest = timer
        self._running += 1

    def _leave(self, timer: _ModuleTimer) -> None:
        if timer.depth:
            timer.depth -= 1
            if not timer.depth:
                self._running -= 1
                self._finish(timer.spans[-1])

    def _begun(self) -> _Span:
        event = self._record()  # before the clock is read, so that its cost is excluded
        return _Span(self._clock(), event)

    def _finish(self, span: _Span) -> None:
        span.end = self._clock()
        span.end_event = self._record()

    def _record(self) -> Any:
        if self._events is None or not self._recording:
            return None
        self._used.append(self._events.note())
        return self._used[-1]

    def _read_device(self) -> None:
        while self._events is not None and self._pending and self._pending[0].is_done():
            events, times = self._pending.popleft()
            for timer, start, end in times:
                timer.device_seconds += seconds_between(start, end)
            self._device_iterations += bool(times)
            self._events.free(events)


def _kind(module: nn.Module) -> str:
    inner = layers_of(module)[-1]
    return type(getattr(inner, '_orig_mod', inner)).__name__  # the module inside a compiled one
