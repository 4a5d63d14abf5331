"""The HTML report of a run: one file with charts and tables that needs no network."""

from __future__ import annotations

import base64
import gzip
import os
from importlib import resources
from pathlib import Path

from mmtempo.report import sections
from mmtempo.report.run_log import RunLog
from mmtempo.utils.atomic_file import write_whole

from . import overview, tables
from .chart import Chart
from .charts import charts, colors_of
from .markup import Markup, element, put, script_json

NEEDS = 'plotly, which draws the HTML report, is not installed: pip install "mmtempo[report]"'
_NO_SCRIPT = 'The charts need JavaScript. All tables are shown without it.'


def plotly_script() -> str:
    """Return the source of plotly.js from the installed plotly package."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NEEDS, name='plotly') from error
    return get_plotlyjs()


def write_html(log: RunLog, path: str | os.PathLike[str]) -> Path:
    """Write the report of a run; return its path."""
    return write_whole(path, page(log, plotly_script()))


def page(log: RunLog, script: str) -> str:
    """Return the text of the page."""
    colors = colors_of(log)
    drawn = {chart.name: chart for chart in charts(log, colors)}
    summary = log.summary
    body = [
        overview.header(log),
        _section(element('p', f'{log.newer}.')) if log.newer else None,
        overview.verdict(log),
        overview.tiles(log),
        overview.notes(log) if log.kind == 'stock' else None,
        _warnings(log),
        _section(_box(drawn, 'throughput')),
        _section(_box(drawn, 'shares'), tables.render(sections.phases(summary), colors)),
        _section(_box(drawn, 'phases')),
        _stalls(log, drawn),
        _section(_box(drawn, 'recent')),
        _table(sections.stages(summary)),
        _memory(log, drawn),
        _table(sections.ranks(summary)),
        _environment(log),
        overview.notes(log) if log.kind != 'stock' else None,
        _data(list(drawn.values()), script) if drawn else None,
    ]
    return overview.document(f'{log.name} · mmtempo', _resource('page.css'), *body)


def _stalls(log: RunLog, drawn: dict[str, Chart]) -> Markup | None:
    return put(
        _pair(_section(_box(drawn, 'lost')), _section(_box(drawn, 'histogram'))),
        _table(sections.periods(log.summary)),
        _table(tables.changes(log.summary)),
        _table(sections.stalls(log.summary)),
    )


def _memory(log: RunLog, drawn: dict[str, Chart]) -> Markup | None:
    box, found = _box(drawn, 'memory'), tables.memory(log.summary)
    return _section(box, tables.render(found)) if box else _table(found)


def _warnings(log: RunLog) -> Markup | None:
    texts = [element('li', text) for text in log.summary.get('warnings') or []]
    listed = element('ul', *texts, class_='warnings')
    return _section(element('h2', 'Warnings'), listed) if texts else None


def _environment(log: RunLog) -> Markup | None:
    cards = [
        element('section', element('h2', title), tables.render(found), class_='card plain')
        for title, facts in (('Machine', log.machine), ('Settings', log.setting))
        if (found := tables.settings(title, facts)).rows
    ]
    return _pair(*cards)


def _pair(*cards: Markup | None) -> Markup | None:
    """Return cards that are next to each other, None if there are none."""
    existing = [card for card in cards if card]
    return element('div', *existing, class_='pair') if existing else None


def _section(*parts: Markup | None) -> Markup | None:
    """Return a card with the parts that exist, None if there are none."""
    existing = [part for part in parts if part]
    return element('section', *existing, class_='card') if existing else None


def _table(found: sections.Section) -> Markup | None:
    """Return a card with the title and the table of a section, None if it has no rows."""
    return _section(element('h2', found.title), tables.render(found)) if found.rows else None


def _box(drawn: dict[str, Chart], name: str) -> Markup | None:
    """Return the element into which page.js draws a chart."""
    chart = drawn.get(name)
    if chart is None:
        return None
    return element(
        'figure',
        element('figcaption', element('h2', chart.title), element('p', chart.note, class_='note')),
        element(
            'div',
            element('noscript', _NO_SCRIPT),
            class_='chart',
            id=f'chart-{name}',
            style=f'height:{chart.height}px',
        ),
    )


def _data(found: list[Chart], script: str) -> Markup:
    """Return the data of the charts, the compressed plotly.js, and the script that unpacks it."""
    packed = base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()
    return put(
        Markup('<script type="application/json" id="charts">'),
        script_json([vars(chart) for chart in found]),
        Markup(f'</script><script type="text/plain" id="plotly">{packed}</script>'),
        Markup(f'<script>{_resource("page.js")}</script>'),
    )


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding='utf-8')
