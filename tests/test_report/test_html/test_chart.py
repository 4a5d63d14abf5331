"""Data of a chart that all charts share."""

from __future__ import annotations

from mmtempo.report.html.chart import plain, series, wrapped


def test_series_has_a_gap_between_runs() -> None:
    lines = [dict(iter=i, run=run) for run in (0, 1) for i in (10, 20)]
    assert series(lines, [1.0, 2.0, 3.0, 4.0]) == (
        [10, 20, None, 10, 20],
        [1.0, 2.0, None, 3.0, 4.0],
    )


def test_series_skips_unknown_values_and_iterations() -> None:
    lines = [dict(iter=1), dict(iter=2), dict(iter=None), dict(iter=4)]
    assert series(lines, [1.0, None, 3.0, 0.123456789]) == ([1, 4], [1.0, 0.12346])


def test_plain_escapes_tags() -> None:
    assert plain('<b>"x" & y</b>') == '&lt;b&gt;"x" &amp; y&lt;/b&gt;'


def test_wrapped_text_has_at_most_six_escaped_lines() -> None:
    assert wrapped('one <two> three', width=9) == 'one &lt;two&gt;<br>three'
    assert wrapped('word ' * 100, width=10).count('<br>') == 5
    assert wrapped(None) == ''
