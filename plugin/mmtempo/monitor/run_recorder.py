"""Records of a monitored training: windows while it runs, and a summary of the whole run.

It imports the verdict of `report`, because each summary has one.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from mmtempo.report.verdict import judge
from mmtempo.report.verdict.figures import is_pause
from mmtempo.system.machine import machine
from mmtempo.timing.run_files import VERSION, RunFiles
from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.window_means import WindowMeans
from mmtempo.utils.phases import BACKWARD, BOTH, HOOKS, WHOLE
from mmtempo.utils.units import duration

# Categories that the config asks for: such stalls get no log line.
PLANNED = ('evaluation', 'checkpoint', 'logging', 'warm-up')
WORTH_A_LINE = 0.05  # share of a window that must be lost for a log line
MOST_WARNINGS = 50
MOST_LOGGED_CHANGES = 10  # log lines for changes of the level; the files have all of them
# Single iterations in the summary of a running training. Measured: they add 5 ms and 10 kB to 9 ms
# and 23 kB; all 1024 iterations, as in the last summary, would add 47 ms and 82 kB.
RING = 128


class RunRecorder:
    """Recorder of the statistics and the other facts of a run.

    Args:
        setting: Settings of the training; see `setting_of`.
        meter: Statistics of its iterations.
        record: Files of the run; None where another process writes them.
        first: Number of iterations done before this training.
    """

    def __init__(
        self, setting: dict[str, Any], meter: IterationStats, record: RunFiles | None, first: int
    ) -> None:
        self._setting, self._meter, self._record, self._first = setting, meter, record, first
        self._machine = machine()
        self._started = time.time()
        self._warnings: list[str] = []
        self._known: dict[str, Any] = {}  # latest device, memory, stages and ranks
        self._means = WindowMeans()
        self._logged_changes = 0
        self._append(
            dict(
                kind='run',
                version=VERSION,
                time=self._started,
                iter=first,
                max_iters=setting['max_iters'],
                machine=self._machine,
                setting=setting,
            )
        )

    def update(self, **facts: Any) -> None:
        """Store facts for the next window and the summary; None and empty values are ignored."""
        self._known.update({key: fact for key, fact in facts.items() if fact})

    def warn(self, text: str, iteration: int) -> None:
        """Record a warning for the files and for the end of the run."""
        if len(self._warnings) < MOST_WARNINGS:
            self._warnings.append(text)
        self._append(dict(kind='warning', time=time.time(), iter=iteration, text=text))

    def stages(self, stages: dict[str, Any]) -> None:
        """Record the times of modules in the forward pass."""
        self._known['stages'] = stages
        self._append(dict(kind='stages', **stages))

    def window(self) -> dict[str, Any] | None:
        """Record the iterations since the last window, and return it; None without iterations.

        Call it at log points, and earlier than the timeline drops iterations.
        """
        return self._write(*self._meter.take())

    def scalars(self, window: dict[str, Any]) -> dict[str, float]:
        """Return the scalars of a window for the visualizer."""
        seconds = window['seconds']
        scalars = {
            'it_per_s': window['it_per_s'],
            'it_per_s_steady': window['steady'],
            'samples_per_s': window.get('samples_per_s'),
            'p95': window['p95'],
            'cv': window['cv'],
            'lost': self._meter.lost_share,
            **{name.removeprefix('hook:'): one / seconds for name, one in window['phases'].items()},
        }
        return {f'tempo/{name}': value for name, value in scalars.items() if value is not None}

    @staticmethod
    def data_and_step(window: dict[str, Any] | None) -> tuple[float, float]:
        """Return seconds per iteration that a process waits for data, and for its other own work.

        Own work excludes the backward pass, in which a fast process waits for the slow ones, and
        work of one process for all: evaluations, saves and log lines.
        """
        if window is None:
            return 0.0, 0.0
        phases, count = window['phases'], window['iterations']
        step = sum(seconds for name, seconds in phases.items() if _is_own(name))
        return phases['data'] / count, step / count

    def line(self, window: dict[str, Any]) -> str | None:
        """Return a log line if a window lost much time to unplanned causes, else None."""
        lines = []
        for change in window['changes']:
            is_unplanned = change['new'] > change['old'] and change.get('category') not in PLANNED
            if is_unplanned and self._logged_changes < MOST_LOGGED_CHANGES:
                self._logged_changes += 1
                lines.append(f'Iteration {change["iter"]} {change["text"]}')
        slow = [stall for stall in window['stalls'] if stall['category'] not in PLANNED]
        lost = sum(stall['lost'] for stall in slow)
        if slow and lost >= WORTH_A_LINE * window['seconds']:
            worst = max(slow, key=lambda stall: stall['lost'])
            others = (
                f' ({len(slow)} slow iterations lost {duration(lost)})' if len(slow) > 1 else ''
            )
            lines.append(f'Iteration {worst["iter"]} {worst["text"]}{others}')
        return '; '.join(lines) or None

    def end(self, status: str, error: str | None = None) -> dict[str, Any]:
        """Write the last lines and the summary, and return the summary."""
        self._write(*self._meter.take(is_last=True))
        summary = self._summary(status, error)
        self._append(
            dict(
                kind='end',
                time=summary['ended'],
                iter=summary['last_iter'],
                status=status,
                error=error,
            )
        )
        if self._record is not None:
            self._record.summarise(summary)
        return summary

    def _write(self, figures: dict[str, Any] | None, stalls: list[dict]) -> dict[str, Any] | None:
        window = None
        stalls = [dict(kind='stall', **stall) for stall in stalls]
        changes = self._meter.take_changes()
        self._append(*stalls, *(dict(kind='change', **one) for one in changes))
        if figures is not None:
            window = dict(kind='window', time=time.time(), **self._with_samples(figures))
            ranks = self._known.pop('ranks', None)
            if ranks is not None:
                window['ranks'] = ranks
            if 'memory' in self._known:
                window['memory'] = self._known['memory']['now']
            self._means.add(window)
            self._append(window)
            window = dict(window, stalls=stalls, changes=changes)
        if self._record is not None and self._record.is_due:
            self._record.summarise(self._summary('running', None, RING))
        return window

    def _summary(self, status: str, error: str | None, ring: int | None = None) -> dict[str, Any]:
        summary: dict[str, Any] = dict(
            version=VERSION,
            status=status,
            error=error,
            started=self._started,
            ended=time.time(),
            first_iter=self._first,
            max_iters=self._setting['max_iters'],
            machine=self._machine,
            setting=self._setting,
            warnings=self._warnings,
            **self._with_samples(self._meter.summary(self._intervals())),
            **self._known,
            **self._means.figures(),
        )
        if summary['iterations']:
            summary['verdict'] = asdict(judge(summary))
        summary['ring'] = self._meter.ring(ring)
        return summary

    def _with_samples(self, figures: dict[str, Any]) -> dict[str, Any]:
        batch = self._setting['batch_size']
        if batch:
            samples = batch * self._setting['world']
            for key in ('', '_steady'):
                rate = figures.get('it_per_s' if not key else 'steady')
                if rate is not None:
                    figures[f'samples_per_s{key}'] = samples * rate
        return figures

    def _intervals(self) -> dict[str, int]:
        """Return the known intervals in iterations, to find periods in stalls."""
        names = (
            'num_workers', 'log_interval', 'val_interval', 'checkpoint_interval', 'epoch_length',
            'accumulation',
        )  # fmt: skip
        return {name: self._setting[name] for name in names if (self._setting[name] or 0) > 1}

    def _append(self, *lines: dict[str, Any]) -> None:
        if self._record is not None:
            self._record.append(list(lines))


def _is_own(phase: str) -> bool:
    """Return whether the time of a phase depends on this process only."""
    is_logging = phase.startswith('logging') or 'LoggerHook' in phase or 'MonitorHook' in phase
    return not (phase in ('data', BACKWARD, BOTH, HOOKS, WHOLE) or is_pause(phase) or is_logging)
