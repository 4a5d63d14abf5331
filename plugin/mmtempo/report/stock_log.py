"""Logs of mmengine's own hooks, as far as they go."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from .format import number, percent
from .recovery import memory_of, phase_totals, total

LONGEST = 1 << 20  # characters of a line of a log
MONITOR = 'ThroughputMonitorHook'
WINDOW = 10  # iterations that stock's times are a mean of, unless the config says otherwise
NOTES = (
    "These are stock logs: they hold no stalls and no causes, and none of the hooks' times.",
    f"Stock's 'time' is the mean of the last {WINDOW} iterations before a log line, unless "
    'log_processor.window_size says otherwise: what was earlier in a longer window is not in it. A '
    'single line is taken for as many iterations.',
    "Stock's 'data_time' holds what comes after its timer hook as well: logging, saving, "
    "schedulers and an evaluation's metrics. The share of the data here is therefore an upper "
    'bound.',
    'Evaluations are not in the times. Samples per second, percentiles and variation are not '
    'known.',
)


def timestamped(folder: Path) -> list[Path]:
    """Folders of runs below a work dir, the newest first."""
    names = (path for path in folder.iterdir() if path.name[:8].isdigit() and path.is_dir())
    return sorted(names, reverse=True)


def find_stock(folder: Path) -> Path | None:
    """The log of the newest training in a folder; a test run leaves files without one."""
    for place in (folder, *timestamped(folder)):
        for inner in (place, place / 'vis_data'):
            # scalars.json holds the same and what other hooks add: second choice.
            files = sorted(inner.glob('*.json'), key=lambda path: path.name, reverse=True)
            files.sort(key=lambda path: path.name == 'scalars.json')
            for file in files:
                if _train_lines(file):
                    return file
    return None


def unmonitored_since(folder: Path, started: float) -> Path | None:
    """The newest folder of a training that began after that moment and had no monitor."""
    for place in timestamped(folder):
        try:
            began = time.mktime(time.strptime(place.name[:15], '%Y%m%d_%H%M%S'))
        except ValueError:
            continue
        # A name has the clock of the machine that trained, which may be in another time zone: a
        # run is not taken for its own successor where its config has the monitor.
        if began > started and find_stock(place) and not _has_monitor(place):
            return place
    return None


def _has_monitor(place: Path) -> bool:
    config = place / 'vis_data' / 'config.py'
    return config.is_file() and MONITOR in config.read_text(encoding='utf-8', errors='replace')


def stock_content(file: Path) -> tuple[dict, list[dict], list[str]] | None:
    """Summary, windows and notes in the monitor's terms; None without lines of a training."""
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
        # A run may have begun anywhere: of its first line no more is known than the next one
        # tells, or those of a run before it, or what its times are a mean of.
        count = min(step, interval)
        windows.append(dict(_window(line, step, count), run=run))
        last = step
    return _summary(windows), windows, list(NOTES)


def _train_lines(file: Path) -> list[dict[str, Any]]:
    """Lines of training iterations: those of an evaluation have no 'iter'."""
    found = []
    with open(file, encoding='utf-8', errors='replace') as stream:
        for text in iter(lambda: stream.readline(LONGEST), ''):
            if len(text) == LONGEST:  # results of a test, or annotations, in one line
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
                found.append(line)
    return found


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
        # Stock writes whole MiB: the largest since the line before.
        window['memory'] = dict(device=dict(allocated=line['memory'] * 2**20))
    for key in ('epoch', 'loss', 'lr'):
        if number(line.get(key)) is not None:
            window[key] = line[key]
    return window


def _summary(windows: list[dict[str, Any]]) -> dict[str, Any]:
    last = max(line['run'] for line in windows)
    windows = [line for line in windows if line['run'] == last]
    iterations, seconds = total(windows, 'iterations'), total(windows, 'seconds')
    phases = phase_totals(windows)
    typical = statistics.median(1 / line['it_per_s'] for line in windows)
    headline = f'{iterations / seconds:.3g} it/s by the stock log'
    if phases:
        headline += f', {percent(phases["data"]["share"])} of it counted as waiting for data'
    summary = dict(
        version=1,
        iterations=int(iterations),
        seconds=seconds,
        last_iter=windows[-1]['iter'],
        it_per_s=iterations / seconds,
        phases=phases,
        memory=memory_of(windows),
        verdict=dict(
            headline=headline,
            why=[
                f'The window in the middle took {1e3 * typical:.0f} ms an iteration, '
                f'the slowest {1e3 / min(line["it_per_s"] for line in windows):.0f} ms.',
                'Stock logs do not tell which iterations were slow, nor why.',
            ],
            change=[
                dict(
                    override=f'default_hooks.timer.type={MONITOR}',
                    why='It lists the slow iterations of the next run with their causes. The '
                    "config needs custom_imports = dict(imports=['mmtempo']) for it.",
                )
            ],
        ),
    )
    return {key: value for key, value in summary.items() if value}
