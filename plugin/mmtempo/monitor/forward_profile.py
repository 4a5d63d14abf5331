"""Which share of the forward pass each part of a model takes."""

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

MOST_FLYING = 16  # iterations whose device times are on their way
REST = 'rest of the forward pass'


class Stage(NamedTuple):
    """What a part of a model took, on average over the iterations.

    Attributes:
        name: Of the part.
        type: Its class.
        calls: In an iteration.
        seconds: In an iteration, by the host's clock.
        share: Of the model's forward pass, 0 to 1; by the device's time where that is known.
        device_seconds: In an iteration; None where the device does not tell.
    """

    name: str
    type: str
    calls: float
    seconds: float
    share: float
    device_seconds: float | None


@dataclass
class _Span:
    start: int
    start_event: Any
    end: int | None = None
    end_event: Any = None


class _Flight(NamedTuple):
    """The events of an iteration that the device may not have reached."""

    events: list[Any]
    times: list[tuple[_Meter, Any, Any]]

    def is_done(self) -> bool:
        return all(event.query() for event in reversed(self.events))


class _Meter:
    """Of one part: the spans of this iteration, and sums over those before."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.depth = self.calls = 0
        self.spans: list[_Span] = []
        self.total_calls = self.whole_calls = self.nanoseconds = 0
        self.device_seconds = 0.0

    def settle(self, counts: bool) -> list[_Span]:
        """End an iteration; returns the spans that count."""
        spans = [span for span in self.spans if counts and span.end is not None]
        self.nanoseconds += sum(span.end - span.start for span in spans if span.end is not None)
        # One that is never called as a whole begins with one of its children.
        self.total_calls += (self.calls or len(spans)) if counts else 0
        self.whole_calls += self.calls if counts else 0
        self.depth, self.calls, self.spans = 0, 0, []
        return spans


class ForwardProfile:
    """Measures named parts of a model while it trains, with hooks that are taken away afterwards.

    ::

        start | iteration, end_iteration | iteration, end_iteration | ... close, result

    Only what runs within the model's own forward pass in training mode counts, so neither what
    checkpointing runs again in the backward pass does, nor an evaluation. A part within another
    named part counts for both.

    A part lasts as long as its forward pass. Direct children that it uses outside of that, with
    no other named part in between, prolong it: the loss of a head belongs to the head. With heads
    of mmseg, whose `loss` calls `self.forward` so that no hook is called, children are all there
    is to see: such a part lasts from its first child to its last.

    What is compiled as a whole shows nothing of its parts: they are left out, as is what was
    never called; `unseen` names them. What no part has taken is in `rest`. One thread is measured.

    Args:
        model: It may be wrapped, for distributed training.
        modules: Parts of it, by name; see `find_modules`.
        events: Of the model's device. Defaults to None: only the host's clock is read.
        clock: Gives nanoseconds, as `time.perf_counter_ns` does.

    Attributes:
        iterations: How many were measured.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: dict[str, nn.Module],
        events: TimingEvents | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.iterations = 0
        self._whole = _Meter(layers_of(model)[-1])
        self._outermost = _Meter(self._whole.module)  # parts that were not within another one
        self._meters = {name: _Meter(module) for name, module in modules.items()}
        self._clock = clock
        self._events = events
        self._recording = events is not None  # in this iteration
        self._used: list[Any] = []  # events of this iteration
        self._flying: deque[_Flight] = deque()
        self._device_iterations = 0
        self._handles: list[Any] = []
        self._going_on = 0  # named parts
        self._latest: _Meter | None = None  # of those that were not within another one

    def start(self) -> None:
        """Add the hooks."""
        self.close()
        self._hook(self._whole.module, self._begin_forward, self._end_forward)
        # Outer parts first, so that they begin first where both begin with the same call.
        for name in sorted(self._meters, key=lambda name: name.count('.')):
            meter = self._meters[name]
            leave = functools.partial(self._leave, meter)
            self._hook(meter.module, functools.partial(self._enter, meter, True), leave)
            for _, child in opened(meter.module.named_children()):
                self._hook(child, functools.partial(self._enter, meter, False), leave)

    def close(self) -> None:
        """Take them away again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def end_iteration(self) -> None:
        """What was measured since the last time is one iteration; nothing is none.

        Nor is what has no end, as an interrupt leaves it: no hook is called then.
        """
        counts = bool(self._whole.spans) and not self._whole.depth
        spans = [
            (meter, span)
            for meter in (self._whole, self._outermost, *self._meters.values())
            for span in meter.settle(counts)
        ]
        self.iterations += counts
        if self._events is not None:
            times = [(meter, span.start_event, span.end_event) for meter, span in spans]
            if self._recording:
                self._flying.append(_Flight(self._used, times))
            self._used = []
            self._read_device()
            self._recording = len(self._flying) < MOST_FLYING

    def result(self) -> list[Stage]:
        """The parts that were called, in the order of their names as given."""
        self._read_device()
        return [
            self._stage(name, meter, meter.nanoseconds, meter.device_seconds)
            for name, meter in self._meters.items()
            if meter.total_calls
        ]

    def rest(self) -> Stage | None:
        """What the parts have left of the model's forward pass; None where there was none.

        With the parts that are not within another one it is all of it, as `result` has found them:
        what the device has told since then is not in it.
        """
        if not self.iterations:
            return None
        whole, parts = self._whole, self._outermost
        nanoseconds = whole.nanoseconds - parts.nanoseconds
        # Parts on streams of their own may take longer together than the model.
        device_seconds = max(0.0, whole.device_seconds - parts.device_seconds)
        return self._stage(REST, whole, nanoseconds, device_seconds)

    def unseen(self) -> list[str]:
        """Names of parts that were never called, or are hidden by what was compiled."""
        return [name for name, meter in self._meters.items() if not meter.total_calls]

    def seen_by_children(self) -> list[str]:
        """Names of parts that were never called as a whole, of which only children were seen."""
        return [
            name
            for name, meter in self._meters.items()
            if meter.total_calls and not meter.whole_calls
        ]

    def _stage(self, name: str, meter: _Meter, nanoseconds: int, device_seconds: float) -> Stage:
        """Of sums over all iterations."""
        share = nanoseconds / max(1, self._whole.nanoseconds)
        each: float | None = None
        if self._device_iterations:
            each = device_seconds / self._device_iterations
            if self._whole.device_seconds:
                share = device_seconds / self._whole.device_seconds
        calls = meter.total_calls / self.iterations
        seconds = nanoseconds * 1e-9 / self.iterations
        return Stage(name, _kind(meter.module), calls, seconds, share, each)

    def _hook(
        self, module: nn.Module, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        # A copy of the model, as of its averages, has these hooks as well.
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
            self._going_on, self._latest = 0, None

    def _end_forward(self) -> None:
        if self._whole.depth:
            self._whole.depth -= 1
            if not self._whole.depth:
                self._finish(self._whole.spans[-1])

    def _enter(self, meter: _Meter, is_whole: bool) -> None:
        """A part is called, or a child of it."""
        if not self._whole.depth:
            return
        meter.depth += 1
        meter.calls += is_whole
        if meter.depth > 1:
            return
        if not is_whole and meter is self._latest:
            meter.spans[-1].end = None
        else:
            meter.spans.append(self._begun())
            if not self._going_on:
                self._outermost.spans.append(meter.spans[-1])
        if not self._going_on:
            self._latest = meter
        self._going_on += 1

    def _leave(self, meter: _Meter) -> None:
        if meter.depth:
            meter.depth -= 1
            if not meter.depth:
                self._going_on -= 1
                self._finish(meter.spans[-1])

    def _begun(self) -> _Span:
        event = self._note()  # before the clock: what it costs is not the part's
        return _Span(self._clock(), event)

    def _finish(self, span: _Span) -> None:
        span.end = self._clock()
        span.end_event = self._note()

    def _note(self) -> Any:
        if self._events is None or not self._recording:
            return None
        self._used.append(self._events.note())
        return self._used[-1]

    def _read_device(self) -> None:
        while self._events is not None and self._flying and self._flying[0].is_done():
            events, times = self._flying.popleft()
            for meter, start, end in times:
                meter.device_seconds += seconds_between(start, end)
            self._device_iterations += bool(times)
            self._events.free(events)


def _kind(module: nn.Module) -> str:
    inner = layers_of(module)[-1]
    return type(getattr(inner, '_orig_mod', inner)).__name__  # of one that is compiled
