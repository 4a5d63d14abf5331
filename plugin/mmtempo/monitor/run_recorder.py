"""What a monitored training has to tell: windows while it runs, and a summary of all of it.

Other hooks know `core` alone. This one needs the verdict of `doctor` and the table of `report`,
because a run has to end with both, and whoever passed them in would import them instead.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from mmtempo.report.run_figures import is_pause
from mmtempo.report.terminal import to_text
from mmtempo.report.verdict import judge
from mmtempo.system.machine import machine
from mmtempo.timing.run_files import VERSION, RunFiles
from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.window_means import WindowMeans
from mmtempo.utils.phases import BACKWARD, BOTH, WHOLE
from mmtempo.utils.units import duration

# Slow for a reason that the config has asked for: no line of the log for each.
PLANNED = ('evaluation', 'checkpoint', 'logging', 'warm-up')
# Share of a window that must be lost before the log says so.
WORTH_A_LINE = 0.05
MOST_WARNINGS = 50
MOST_CHANGES_TOLD = 10  # lines of the log for paces that go up and down; the files have all
# Iterations that a summary has one by one while the run goes on. Measured here: 5 ms and 10 KB more
# than the 9 ms and 23 KB without; all 1024 of them, as at the end, would take 47 ms and 82 KB.
RING = 128


class RunRecorder:
    """Writes down what a meter has found, together with what else is known of a run.

    Args:
        setting: Of the training.
        meter: Of its iterations.
        record: Where it is written; None where another process writes.
        first: The iteration that the training begins behind.
    """

    def __init__(
        self, setting: dict[str, Any], meter: IterationStats, record: RunFiles | None, first: int
    ) -> None:
        self._setting, self._meter, self._record, self._first = setting, meter, record, first
        self._machine = machine()
        self._started = time.time()
        self._warnings: list[str] = []
        self._known: dict[str, Any] = {}  # the newest of device, memory, stages, and ranks
        self._means = WindowMeans()
        self._told_changes = 0
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
        """Something that the summary has as well, or the next window; None is not known."""
        self._known.update({key: fact for key, fact in facts.items() if fact})

    def warn(self, text: str, iteration: int) -> None:
        """Something that the user should see at the end, too."""
        if len(self._warnings) < MOST_WARNINGS:
            self._warnings.append(text)
        self._append(dict(kind='warning', time=time.time(), iter=iteration, text=text))

    def stages(self, stages: dict[str, Any]) -> None:
        """Shares of the forward pass."""
        self._known['stages'] = stages
        self._append(dict(kind='stages', **stages))

    def window(self) -> dict[str, Any] | None:
        """Take what has ended since the last one; None where nothing has."""
        found, stalls = self._meter.take()
        return self._write(found, stalls)

    def flush(self) -> None:
        """Take what has ended, though nobody logs: the timeline keeps the last ones only."""
        self.window()

    def scalars(self, window: dict[str, Any]) -> dict[str, float]:
        """For the visualizer."""
        seconds = window['seconds']
        found = {
            'it_per_s': window['it_per_s'],
            'it_per_s_steady': window['steady'],
            'samples_per_s': window.get('samples_per_s'),
            'p95': window['p95'],
            'cv': window['cv'],
            'lost': self._meter.lost_share,
            **{name.removeprefix('hook:'): one / seconds for name, one in window['phases'].items()},
        }
        return {f'tempo/{name}': value for name, value in found.items() if value is not None}

    @staticmethod
    def data_and_step(window: dict[str, Any] | None) -> tuple[float, float]:
        """Seconds of an iteration: waited for data, and all else that is this process's own.

        Without the backward pass, in which a process waits for others: there, who is fast takes
        longest. Without what one process does for all, as evaluations, saves and log lines.
        """
        if window is None:
            return 0.0, 0.0
        phases, count = window['phases'], window['iterations']
        step = sum(seconds for name, seconds in phases.items() if _is_own(name))
        return phases['data'] / count, step / count

    def text(self, summary: dict[str, Any]) -> str:
        """The summary for the log."""
        return to_text(summary)

    def line(self, window: dict[str, Any]) -> str | None:
        """For the log, where a window has lost much for reasons that nobody has asked for."""
        lines = []
        for change in window['changes']:
            is_told = change['new'] > change['old'] and change.get('category') not in PLANNED
            if is_told and self._told_changes < MOST_CHANGES_TOLD:
                self._told_changes += 1
                lines.append(f'Iteration {change["iter"]} {change["text"]}')
        slow = [stall for stall in window['stalls'] if stall['category'] not in PLANNED]
        lost = sum(stall['lost'] for stall in slow)
        if slow and lost >= WORTH_A_LINE * window['seconds']:
            worst = max(slow, key=lambda stall: stall['lost'])
            others = f' ({len(slow)} slow ones lost {duration(lost)})' if len(slow) > 1 else ''
            lines.append(f'Iteration {worst["iter"]} {worst["text"]}{others}')
        return '; '.join(lines) or None

    def end(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The last lines and the summary, which is returned."""
        found, stalls = self._meter.take(is_last=True)
        self._write(found, stalls)
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

    def _write(self, found: dict[str, Any] | None, stalls: list[dict]) -> dict[str, Any] | None:
        window = None
        stalls = [dict(kind='stall', **stall) for stall in stalls]
        changes = self._meter.take_changes()
        self._append(*stalls, *(dict(kind='change', **one) for one in changes))
        if found is not None:
            window = dict(kind='window', time=time.time(), **self._with_samples(found))
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
        """Where stalls may come from that come every so often."""
        names = 'num_workers', 'log_interval', 'val_interval', 'checkpoint_interval', 'epoch_length'
        return {name: self._setting[name] for name in names if (self._setting[name] or 0) > 1}

    def _append(self, *lines: dict[str, Any]) -> None:
        if self._record is not None:
            self._record.append(list(lines))


def _is_own(phase: str) -> bool:
    """Whether its time is that of this process, and no matter of the others."""
    is_logging = phase.startswith('logging') or 'LoggerHook' in phase or 'MonitorHook' in phase
    return not (phase in ('data', BACKWARD, BOTH, WHOLE) or is_pause(phase) or is_logging)
