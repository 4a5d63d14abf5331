"""Findings about the training step: the host, the device, and the pace of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmtempo.replacements import WITH_AMP
from mmtempo.timing.causes import NEW_SHAPE
from mmtempo.timing.pace import Slowdown
from mmtempo.utils.units import counted, duration, percent

from .data import use_our_loop
from .figures import MIN_READINGS, Advice, Finding, RunFigures, is_pause
from .periodic import stock_hooks

IDLE = 0.15  # share of the time in which a device may be idle
OFTEN = 0.5  # share of the readings in which a throttled device is reported without a slowdown
RARE = 4  # multiple of the distance by which work may be near to be named
EXPLAINED = 0.5  # share of a slowdown that known causes explain
POWER = 'power limit'
COMPILED, DEVICE_FULL, THROTTLED = 'torch compiled', 'device memory was full', 'device throttled'
CPU_CAUSES = ('waiting for a CPU', 'other processes had the CPU')


def collections(run: RunFigures) -> Iterator[Finding]:
    """Find garbage collections that cost much."""
    yield from _stalls(run, 'gc', 'Garbage collection', run.lost('gc'))


def compilations(run: RunFigures) -> Iterator[Finding]:
    """Find compilations by torch after the first iterations."""
    change = [Advice('compile.dynamic=True', 'one compilation for inputs of all sizes')]
    change = change if run.setting.get('compile_dynamic') is False else []
    yield from _stalls(run, 'recompilation', 'Compilation by torch', _named(run, COMPILED), change)


def new_shapes(run: RunFigures) -> Iterator[Finding]:
    """Find iterations that are slow because their input has a new shape."""
    change = [Advice('env_cfg.cudnn_benchmark=False', 'no search for kernels at each new shape')]
    change = change if run.machine.get('accelerator') else []
    yield from _stalls(run, 'shapes', 'New input shapes', _named(run, NEW_SHAPE), change)


def device_memory(run: RunFigures) -> Iterator[Finding]:
    """Find stalls in which the allocator of the device frees its cache."""
    change = _mixed_precision(run, 'needs less memory')
    yield from _stalls(run, 'device memory', 'Full device memory', _named(run, DEVICE_FULL), change)


def throttled(run: RunFigures) -> Iterator[Finding]:
    """Find a device whose clocks are reduced, for a time or throughout."""
    shares, stalls = _throttled_shares(run), _named(run, THROTTLED)
    seconds = sum(lost for _, lost, _ in stalls)
    found = run.slowdown
    if found is not None and _is_throttled(run, found):
        seconds = max(seconds, found.lost)
    names = [cause.partition(': ')[2] for cause, _, _ in stalls]
    names += sorted(shares, key=lambda reason: -shares[reason])
    share = max(shares.values(), default=0.0)
    # Without a slowdown there is nothing to compare with; a power limit is usual at full load.
    is_usual = share > OFTEN and not run.is_worth(seconds) and names[0] != POWER
    if is_usual or run.is_worth(seconds):
        headline = f'The device runs at reduced clocks: {names[0]}.'
        why = ['Check its power limit, its cooling, and what else runs on it.']
        if share:
            readings = counted(run.device_readings, 'reading')
            why.insert(0, f'Reduced clocks in {percent(share)} of {readings}.')
        if not is_usual:
            why.insert(0, f'Slower iterations: {run.cost(seconds)}.')
        yield Finding('device throttled', share * run.total if is_usual else seconds, headline, why)


def slowdowns(run: RunFigures) -> Iterator[Finding]:
    """Find a lasting change to slower iterations, in a step or gradual."""
    found, pace = run.slowdown, run.summary.get('pace') or {}
    known = sum(one.get('lost') or 0.0 for one in run.stalls if _is_explained_span(one))
    if run.is_taken:
        return
    if found is None or known > EXPLAINED * found.lost or not run.is_worth(found.lost):
        yield from _stalls(run, 'pace', 'A slower pace for a time', run.lost('pace'))
        return
    if _is_throttled(run, found):
        return
    times = f'{duration(found.new)} instead of {duration(found.old)}'
    if found.is_gradual:
        headline = f'Iterations become slower: {times} at the end.'
        why = [f'Even growth, apart from waiting for data: {run.cost(found.lost)}.']
        yield Finding('drift', found.lost, headline, why)
        return
    size = pace.get('size') or 1
    first = (run.summary.get('first_iter') or 0) + found.index + 1
    changes = [one for one in run.summary.get('changes') or [] if one.get('iter')]
    slower = [one for one in changes if (one.get('new') or 0) > (one.get('old') or 0)]
    near = [one for one in slower if abs(one['iter'] - first) <= size]
    near.sort(key=lambda one: abs(one['iter'] - first))
    if near and near[0].get('cause') == NEW_SHAPE:
        return  # larger inputs are more work
    first, about = (near[0]['iter'], '') if near else (first, 'about ')
    headline = f'Iterations take {times} from {about}iteration {first} on.'
    why = [f'Slower pace, apart from waiting for data: {run.cost(found.lost)}.']
    if near and near[0].get('category') not in (None, 'pace'):
        why.append(f'The change is in {near[0].get("phase")}: {near[0].get("cause")}.')
    events = _events_near(run, first, size)
    why += [f'It begins near {" and ".join(events)}.'] if events else []
    yield Finding('pace', found.lost, headline, why)


def _throttled_shares(run: RunFigures) -> dict[str, float]:
    """Return the share of the readings with reduced clocks, by reason; empty with few readings."""
    shares = run.summary.get('device_throttled') or {}
    known = {reason: share for reason, share in shares.items() if share is not None}
    return known if run.device_readings >= MIN_READINGS else {}


def _is_throttled(run: RunFigures, found: Slowdown) -> bool:
    """Return whether the clocks were reduced for most of the slower part of the run."""
    part = 1 - found.index / run.iterations
    return max(_throttled_shares(run).values(), default=0.0) > OFTEN * part


def copies(run: RunFigures) -> Iterator[Finding]:
    """Find an expensive data preprocessor: work on the host, and copies to a device."""
    seconds = run.seconds('to_device')
    if not run.machine.get('accelerator') or not run.is_worth(seconds):
        return  # without a device it is a part of the computation
    change, by_hand = use_our_loop(run)
    if run.setting.get('pin_memory') is False:
        why = 'copies from pinned memory are asynchronous'
        change = [Advice('train_dataloader.pin_memory=True', why), *change]
    share = percent(run.share(seconds))
    headline = f'Preprocessing and copies to the device take {share} of the time.'
    costs = f'{run.cost(seconds)}, {run.per_iteration(seconds)}'
    why = f'Preprocessing and copies to the device: {costs}.'
    yield Finding('copies', seconds, headline, [why, *by_hand], change)


def idle_device(run: RunFigures) -> Iterator[Finding]:
    """Find a device that is idle though the training waits for nothing."""
    busy = run.device_busy
    if busy is None:
        return
    explained = run.seconds('data') + sum(run.seconds(one) for one in run.phases if is_pause(one))
    idle = 1 - busy - run.share(explained)
    if idle <= IDLE:
        return
    change = stock_hooks(run)
    if 'train_step' not in run.phases:  # a compiled step has this phase
        reason = 'may launch fewer and larger kernels; compare the speed'
        change.append(Advice('compile=True', reason))
    headline = (
        'Apart from waiting for data, evaluation and saving, the device is idle for '
        f'{percent(idle)} of the time.'
    )
    readings = counted(run.device_readings, 'reading')
    why = [
        f'The driver reports the device busy for {percent(busy)} of the time ({readings}).',
        f'Waiting for data, evaluation and saving take {percent(run.share(explained))}.',
        'The rest suggests that the host launches kernels more slowly than the device runs them.',
    ]
    yield Finding('idle device', idle * run.total, headline, why, change)


def device_is_the_limit(run: RunFigures) -> list[str]:
    """Return what may be done where the device is busy all the time."""
    busy = run.device_busy
    if busy is None or busy < 1 - IDLE:
        return []
    readings = counted(run.device_readings, 'reading')
    why = [
        f'The device is the limit: its driver reports it busy for {percent(busy)} of the time '
        f'({readings}).'
    ]
    if _mixed_precision(run, ''):
        why.append('Mixed precision (--amp) may reduce its work.')
    return why


def delays(run: RunFigures) -> Iterator[Finding]:
    """Find stalls of the step that other findings do not explain."""
    causes = [row for row in run.lost('host') if row[0] in CPU_CAUSES]
    if not run.is_taken:
        workers, cores = run.whole('num_workers') or 0, run.cores or 0
        change = []
        if workers >= cores > 1 and not run.is_worth(run.waited):
            why = f'{workers} workers on {cores} cores leave no core to the main process'
            change = [Advice(f'train_dataloader.num_workers={cores - 1}', why)]
        yield from _stalls(run, 'cpu', 'Waiting for a CPU', causes, change)
    disk = [row for row in run.lost('host') if row[0] == 'waiting for a disk']
    yield from _stalls(run, 'disk', 'Waiting for a disk', disk)
    if not run.is_taken:
        yield from _stalls(run, 'unexplained', 'Delay of unknown cause', run.lost('unexplained'))


def outside_of_phases(run: RunFigures) -> Iterator[Finding]:
    """Find time that belongs to no phase."""
    seconds = run.seconds('unexplained')
    if run.is_worth(seconds):
        headline = f'{percent(run.share(seconds))} of the time is unexplained.'
        yield Finding('unexplained', seconds, headline, [f'Unexplained: {run.cost(seconds)}.'])


def _stalls(
    run: RunFigures,
    key: str,
    name: str,
    causes: list[tuple[str, float, int]],
    change: list[Advice] | None = None,
) -> Iterator[Finding]:
    """Find stalls by causes that cost much together."""
    seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
    if run.is_worth(seconds):
        why = f'{name}: {run.cost(seconds)}, in {counted(count, "iteration")}.'
        if causes[0][0].lower() != name.lower():
            why += f' Main cause: {causes[0][0]}.'
        verb = 'cost' if name.endswith('s') else 'costs'
        headline = f'{name} {verb} {percent(run.share(seconds))} of the time.'
        yield Finding(key, seconds, headline, [why], change or [])


def _named(run: RunFigures, cause: str) -> list[tuple[str, float, int]]:
    return [row for row in run.lost('device') if row[0].startswith(cause)]


def _is_explained_span(stall: Mapping[str, Any]) -> bool:
    is_span = (stall.get('iterations') or 1) > 1
    return is_span and stall.get('category') not in ('pace', 'unexplained')


def _events_near(run: RunFigures, iteration: int, within: int) -> list[str]:
    """Return the evaluation and the save near an iteration."""
    events = []
    for name, key in (('the evaluation', 'val_interval'), ('the save', 'checkpoint_interval')):
        interval = run.whole(key) or 0
        at = round(iteration / interval) * interval if interval else 0
        if at and abs(at - iteration) <= within and interval > RARE * within:
            events.append(f'{name} at iteration {at}')
    return events


def _mixed_precision(run: RunFigures, why: str) -> list[Advice]:
    """Advise mixed precision if the optimizer wrapper is known to have none."""
    ours = next((amp for plain, amp in WITH_AMP.items() if run.has_part(plain)), None)
    return [Advice(f'optim_wrapper.type={ours}', f'mixed precision: {why}')] if ours else []
