"""Read logs of mmengine's hooks, in the terms of the monitor."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from .format import digits, duration, number, percent, total

MAX_LINE = 1 << 20  # characters; a longer line belongs to no log
MONITOR = 'ThroughputMonitorHook'
WINDOW = 10  # iterations that stock averages times over, unless the config changes it
NOTES = (
    'These are stock logs: they contain no stalls, no causes and no times of hooks.',
    f"Stock's 'time' is the mean of the last {WINDOW} iterations before a log line, unless "
    'log_processor.window_size changes it: earlier iterations of a longer window are not in it. A '
    'single line counts for as many iterations.',
    "Stock's 'data_time' also contains what follows its timer hook: logging, saving, schedulers "
    "and an evaluation's metrics. The share of the data is therefore an upper bound.",
    'The times exclude evaluations. Samples per second, percentiles and variation are unknown.',
)


def timestamped(folder: Path) -> list[Path]:
    """Return the timestamped folders of a work dir, the newest first."""
    names = (path for path in folder.iterdir() if path.name[:8].isdigit() and path.is_dir())
    return sorted(names, reverse=True)


def find_stock(folder: Path) -> Path | None:
    """Return the log of the newest training in a folder, None if there is none.

    A test run leaves files without lines of a training.

    Args:
        folder: A work dir, or a timestamped folder in one.
    """
    for candidate in (folder, *timestamped(folder)):
        for inner in (candidate, candidate / 'vis_data'):
            # scalars.json also contains what other hooks add: second choice.
            files = sorted(inner.glob('*.json'), key=lambda path: path.name, reverse=True)
            files.sort(key=lambda path: path.name == 'scalars.json')
            for file in files:
                if _train_lines(file):
                    return file
    return None


def unmonitored_since(folder: Path, started: float) -> Path | None:
    """Return the newest folder of a later training without the monitor, None if there is none.

    Args:
        folder: The work dir.
        started: Unix time after which the training began, in seconds.
    """
    for candidate in timestamped(folder):
        try:
            began = time.mktime(time.strptime(candidate.name[:15], '%Y%m%d_%H%M%S'))
        except ValueError:
            continue
        # The training machine, whose clock names the folder, may be in another time zone. A run
        # whose config has the monitor is thus never mistaken for a later run.
        if began > started and find_stock(candidate) and not _has_monitor(candidate):
            return candidate
    return None


def _has_monitor(folder: Path) -> bool:
    config = folder / 'vis_data' / 'config.py'
    return config.is_file() and MONITOR in config.read_text(encoding='utf-8', errors='replace')


def stock_content(file: Path) -> tuple[dict, list[dict], list[str]] | None:
    """Return summary, windows and notes as the monitor has them, None without training lines.

    Args:
        file: A log of stock's hooks.
    """
    lines = _train_lines(file)
    if not lines:
        return None
    windows, run, last, interval = [], 0, 0, WINDOW
    steps = [int(line['iter']) for line in lines]
    for line, step, following in zip(lines, steps, [*steps[1:], 0]):
        if step <= last:  # a resumed run in the same file
            run, last = run + 1, 0
        if last:
            interval = step - last
        elif following > step:
            interval = following - step
        # A run may start at any iteration, so its first line counts for one interval: that to the
        # next line, else that of an earlier run, else stock's averaging window.
        count = min(step, interval)
        windows.append(dict(_window(line, step, count), run=run))
        last = step
    return _summary(windows), windows, list(NOTES)


def _train_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of training iterations; those of an evaluation have no 'iter'."""
    lines = []
    with open(file, encoding='utf-8', errors='replace') as stream:
        for text in iter(lambda: stream.readline(MAX_LINE), ''):
            if len(text) == MAX_LINE:  # a file of test results or annotations
                break
            try:
                line = json.loads(text, parse_constant=lambda _: None)
            except ValueError:
                continue
            if not isinstance(line, dict) or line.get('mode', 'train') != 'train':
                continue
            # With log_with_hierarchy the keys are train/time, train/loss, ...
            line = {key.removeprefix('train/'): value for key, value in line.items()}
            if (number(line.get('time')) or 0) > 0 and (number(line.get('iter')) or 0) >= 1:
                lines.append(line)
    return lines


def _window(line: dict[str, Any], step: int, count: int) -> dict[str, Any]:
    seconds = line['time']
    window = dict(
        kind='window', iter=step, iterations=count, seconds=count * seconds, it_per_s=1 / seconds
    )
    data = number(line.get('data_time'))
    if data is not None:
        data = min(data, seconds)
        window['phases'] = {'data': count * data, 'everything else': count * (seconds - data)}
    if number(line.get('memory')):
        # In whole MiB: the peak since the previous line.
        window['memory'] = dict(device=dict(allocated=line['memory'] * 2**20))
    for key in ('epoch', 'loss', 'lr'):
        if number(line.get(key)) is not None:
            window[key] = line[key]
    return window


def _summary(windows: list[dict[str, Any]]) -> dict[str, Any]:
    last = max(line['run'] for line in windows)
    windows = [line for line in windows if line['run'] == last]
    iterations, seconds = total(windows, 'iterations'), total(windows, 'seconds')
    phases = _phases(windows)
    times = [1 / line['it_per_s'] for line in windows]
    headline = f'{digits(iterations / seconds)} it/s according to the stock log.'
    if phases:
        share = percent(phases['data']['share'])
        headline += f' At most {share} of the time is waiting for data.'
    summary = dict(
        version=1,
        iterations=int(iterations),
        seconds=seconds,
        last_iter=windows[-1]['iter'],
        it_per_s=iterations / seconds,
        phases=phases,
        memory=_memory(windows),
        verdict=dict(
            headline=headline,
            why=[
                f'The median window took {duration(statistics.median(times))} per iteration, '
                f'the slowest {duration(max(times))}.',
                'Stock logs do not contain which iterations were slow, or why.',
            ],
            change=[
                dict(
                    override=f'default_hooks.timer.type={MONITOR}',
                    why='reports slow iterations and their causes in the next run; the config '
                    "needs custom_imports = dict(imports=['mmtempo'])",
                )
            ],
        ),
    )
    return {key: value for key, value in summary.items() if value}


def _phases(windows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return seconds and share of each phase."""
    found = [line['phases'] for line in windows if 'phases' in line]
    seconds = {name: total(found, name) for name in (found[0] if found else ())}
    whole = sum(seconds.values())
    return {name: dict(seconds=one, share=one / whole) for name, one in seconds.items()}


def _memory(windows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last and the largest reading, None without any."""
    found = [line['memory'] for line in windows if 'memory' in line]
    if not found:
        return None
    return dict(now=found[-1], peak=max(found, key=lambda one: one['device']['allocated']))
