"""Comparison of two runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmtempo.report import RunLog, read_log
from mmtempo.report.compare import Comparison, allowed_slowdown, compare
from mmtempo.report.verdict import judge
from mmtempo.report.verdict.figures import FEW
from tests.testing.made_up import write_run


def log(**summary: Any) -> RunLog:
    return RunLog(Path('somewhere'), summary=summary)


def shown(found: Comparison) -> str:
    console = Console(file=io.StringIO(), width=120)
    found.show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ('text', 'fraction'),
    [('5%', 0.05), ('5 %', 0.05), ('5', 0.05), ('0.05', 0.05), ('.05', 0.05), ('0.5%', 0.005),
     ('2.5', 0.025), ('0', 0.0), ('0%', 0.0), ('1', 0.01), ('99%', 0.99)],
)  # fmt: skip
def test_allowed_slowdown_is_a_percentage_or_a_fraction(text: str, fraction: float) -> None:
    assert allowed_slowdown(text) == pytest.approx(fraction)


@pytest.mark.parametrize('text', ['', '%', 'five', '-5%', '100', '100%', '5%%', 'nan', '1e-2'])
def test_invalid_slowdown_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as '5%' or '5', or a fraction such as '0.05'"):
        allowed_slowdown(text)


def test_samples_are_judged_if_both_runs_have_them() -> None:
    found = compare(log(it_per_s=10.0, samples_per_s=40.0), log(it_per_s=5.0, samples_per_s=39.0))
    assert found.speed.name == 'samples/s, end to end'
    assert found.slower == pytest.approx(0.025)
    found = compare(log(it_per_s=10.0, samples_per_s=40.0), log(it_per_s=5.0))
    assert found.speed.name == 'it/s, end to end'
    assert found.slower == pytest.approx(0.5)
    with pytest.raises(ValueError, match='found no speed that both runs have'):
        _ = compare(log(it_per_s=10.0), log(samples_per_s=1.0)).speed


def test_exactly_the_allowed_slowdown_is_allowed() -> None:
    found = compare(log(it_per_s=100.0), log(it_per_s=95.0))
    assert not found.is_too_slow(0.05)
    assert found.is_too_slow(0.049)
    assert not compare(log(it_per_s=95.0), log(it_per_s=100.0)).is_too_slow(0)


def test_table_shows_changes_and_which_are_better(tmp_path: Path) -> None:
    a = read_log(write_run(tmp_path / 'a', iterations=500))
    b = read_log(write_run(tmp_path / 'b', iterations=500, slowness=1.25))
    found = compare(a, b)
    text = shown(found)
    rows = {row.name: row for row in found.rows}
    assert rows['it/s, end to end'].change == pytest.approx(-0.2)
    assert rows['forward, per iteration'].change == pytest.approx(0.25)
    assert rows['forward, share'].change == pytest.approx(0)
    assert '-20.0 % worse' in text
    assert '+25.0 % worse' in text
    assert 'peak memory, all processes (PSS)' in text
    assert 'machine' not in text  # the memory may be that of a container
    assert found.warnings == []
    faster = shown(compare(b, a))
    assert '+25.0 % better' in faster
    assert '-20.0 % better' in faster


def test_phase_of_one_run_has_no_change() -> None:
    a = log(iterations=10, phases=dict(data=dict(seconds=1.0, share=0.5)))
    some, little = dict(seconds=2.0, share=0.6), dict(seconds=0.001, share=0.0005)
    b = log(iterations=10, phases={'logging': little, 'hook:EMAHook': some})
    rows = {row.name: row for row in compare(a, b).rows}
    assert [name for name in rows if 'share' in name] == ['hook:EMAHook, share', 'data, share']
    assert rows['data, per iteration'].b is None
    assert rows['hook:EMAHook, per iteration'].b == pytest.approx(0.2)
    assert rows['hook:EMAHook, per iteration'].change is None


def test_warnings_name_what_makes_speeds_incomparable() -> None:
    a = log(machine=dict(cpu='A', cores=2), setting=dict(batch_size=2, world=1), status='completed')
    b = log(machine=dict(cpu='B', cores=2), setting=dict(batch_size=4, world=1), status='crashed')
    text = '\n'.join(compare(a, b).warnings)
    assert 'machines differ: cpu A against B' in text
    assert 'batches differ: batch size 2 against 4' in text
    assert 'B: the run did not complete (crashed)' in text
    text = '\n'.join(compare(a, RunLog(Path(), 'stock')).warnings)
    assert 'stock logs only' in text
    assert 'those of the other run (0 s) are excluded' in text
    assert 'the machine of B is unknown' in text


def test_evaluations_are_excluded_if_one_run_has_stock_logs() -> None:
    """Times of stock logs exclude them: a run with the monitor would seem slower."""
    phases = dict(
        data=dict(seconds=20.0, share=0.1), forward=dict(seconds=80.0, share=0.4),
        evaluation=dict(seconds=100.0, share=0.5),
    )  # fmt: skip
    ours = log(
        iterations=1000, seconds=200.0, it_per_s=5.0, samples_per_s=20.0, steady=11.0, phases=phases
    )
    stock = RunLog(Path('s'), 'stock', dict(iterations=1000, seconds=100.0, it_per_s=10.0))
    for found in (compare(stock, ours), compare(ours, stock)):
        assert found.speed.name == 'it/s, without evaluations'
        assert found.slower == pytest.approx(0)
        rows = {row.name: row for row in found.rows}
        assert not any('evaluation, ' in name for name in rows)
        assert {rows['data, share'].a, rows['data, share'].b} == {None, 0.2}
        assert 'those of the other run (1 min 40 s) are excluded too' in ''.join(found.warnings)
    assert ours.summary['it_per_s'] == 5.0
    found = compare(ours, ours)
    assert (found.speed.name, found.speed.a) == ('samples/s, end to end', 20.0)


def test_run_of_evaluations_alone_can_be_compared() -> None:
    phases = dict(evaluation=dict(seconds=100.0, share=1.0))
    ours = log(iterations=1, seconds=100.0, it_per_s=0.01, phases=phases)
    found = compare(ours, RunLog(Path('s'), 'stock', dict(it_per_s=10.0)))
    assert found.speed.a == 0.01


@pytest.mark.parametrize(
    ('summary', 'why'),
    [
        (dict(status='crashed', iterations=100), 'B (somewhere) crashed after 100 iterations'),
        (dict(status='crashed', iterations=1), 'B (somewhere) crashed after 1 iteration'),
        (
            dict(status='completed', iterations=19),
            'B (somewhere) has 19 iterations, at least 20 are needed',
        ),
        (dict(), 'B (somewhere) has an unknown number of iterations, at least 20 are needed'),
        (dict(status='interrupted', iterations=20), None),
        (dict(status='running', iterations=20), None),
    ],
)
def test_crashed_and_short_runs_are_unfit(summary: dict, why: str | None) -> None:
    good, other = log(iterations=400, it_per_s=1.0), log(it_per_s=8.0, **summary)
    assert compare(good, other).unfit == ([why] if why else [])
    assert compare(other, good).unfit == ([why.replace('B', 'A', 1)] if why else [])


@pytest.mark.parametrize('count', [FEW - 1, FEW])
def test_comparison_and_verdict_need_as_many_iterations(count: int) -> None:
    good, other = log(iterations=400, it_per_s=1.0), log(iterations=count, it_per_s=8.0)
    verdict = judge(dict(iterations=count, phases=dict(data=dict(seconds=1.0))))
    assert bool(compare(good, other).unfit) == (count < FEW)
    assert verdict.headline.startswith('Too short to judge') == (count < FEW)


@pytest.mark.parametrize(('count', 'warns'), [(200, False), (199, True), (801, True)])
def test_different_lengths_are_shown_with_a_warning(count: int, warns: bool) -> None:
    found = compare(log(iterations=400, it_per_s=1.0), log(iterations=count, it_per_s=1.0))
    row = found.rows[0]
    assert (row.name, row.a, row.b) == ('iterations', 400, count)
    assert str(count) in shown(found).splitlines()[3]
    start = f"lengths differ: 400 iterations against {count}; 'end to end' includes warm-up"
    assert any(text.startswith(start) for text in found.warnings) == warns
