"""All figures of the page."""

from __future__ import annotations

from mmtempo.report.format import number
from mmtempo.report.run_log import RunLog

from .chart import Chart
from .colors import phase_colors
from .memory_chart import memory
from .phase_charts import recent, shares, shares_over_time
from .speed_charts import histogram, lost_by_cause, throughput
from .thinning import thin_windows


def charts(log: RunLog, colors: dict[str, str]) -> list[Chart]:
    """Every figure that this log has the data for; `colors` are those of the phases."""
    windows, summary = thin_windows(log.windows), log.summary
    found = [
        throughput(
            windows,
            log.stalls or summary.get('stalls') or [],
            summary.get('changes') or [],
            whole='as logged' if log.kind == 'stock' else 'end to end',
        ),
        shares(summary.get('phases') or {}, colors),
        shares_over_time(windows, colors),
        lost_by_cause(summary),
        histogram(summary),
        recent(summary.get('ring') or {}, colors),
        memory(windows),
    ]
    drawn = [chart for chart in found if chart is not None]
    for chart in drawn if log.kind == 'stock' else ():
        chart.note = 'As stock logs count: see above what they leave out.'
    return drawn


def colors_of(log: RunLog) -> dict[str, str]:
    """One colour for each phase that this log names anywhere; large ones choose first."""
    phases = log.summary.get('phases') or {}
    names = dict.fromkeys(
        sorted(phases, key=lambda name: -(number(phases[name].get('share')) or 0))
    )
    names.update(dict.fromkeys((log.summary.get('ring') or {}).get('phases') or []))
    for line in log.windows:
        names.update(dict.fromkeys(line.get('phases') or {}))
    return phase_colors([*names, 'other'])
