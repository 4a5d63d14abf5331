"""Comparison of two runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmtempo.report import RunLog, read_log
from mmtempo.report.compare import Comparison, allowed_slowdown, compare
from mmtempo.report.format import MISSING
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
    assert rows['forward, share'].change_text() == '+0.0 points'
    assert '-20.0 % worse' in text
    assert '+25.0 % worse' in text
    assert 'peak memory, all processes (PSS)' in text
    assert 'machine' not in text  # the memory may be that of a container
    assert found.differences == found.unfit == []
    faster = shown(compare(b, a))
    assert '+25.0 % better' in faster
    assert '-20.0 % better' in faster


def phase(seconds: float) -> dict[str, float]:
    """Return figures of a phase in a run of 100 s."""
    return dict(seconds=seconds, share=seconds / 100)


def change_of_phase(a: float | None, b: float | None, kind: str = 'tempo') -> str:
    """Return the change of a phase, given its milliseconds per iteration of 100 ms."""
    phases = [
        dict(data=phase(50.0)) | ({} if one is None else dict(x=phase(one))) for one in (a, b)
    ]
    logs = [RunLog(Path(), summary=dict(iterations=1000, phases=one)) for one in phases]
    logs[1].kind = kind
    rows = {row.name: row for row in compare(*logs).rows}
    return rows['x, per iteration'].change_text()


@pytest.mark.parametrize(
    ('a', 'b', 'text'),
    [
        (10.0, 12.0, '+20.0 % worse '),
        (10.0, 9.0, '-10.0 % better'),
        (10.0, 10.0, '+0.0 %'),
        (0.5, 1.0, '+100.0 % worse '),
        # One of them is too short for a ratio: 0.3 us against 3.4 ms is no +1060194.7 %.
        (0.0003, 3.4, '+3.40 ms worse '),
        (3.4, 0.0003, '-3.40 ms better'),
        (0.49, 0.5, '+10.0 us worse '),
        # Both are.
        (0.2, 0.4, MISSING),
        # Without time, it did not occur.
        (None, 3.4, 'new'),
        (0.0, 3.4, 'new'),
        (3.4, None, 'gone'),
    ],
)
def test_change_of_phase_is_a_ratio_only_of_two_large_values(
    a: float | None, b: float | None, text: str
) -> None:
    assert change_of_phase(a, b) == text


def test_phase_that_only_stock_logs_lack_is_not_gone() -> None:
    assert change_of_phase(3.4, None, kind='stock') == MISSING


def test_run_without_phases_has_no_gone_phase() -> None:
    found = compare(log(iterations=10, phases=dict(x=phase(50.0))), log(iterations=10))
    assert found.rows[1].name == 'x, per iteration'
    assert found.rows[1].change_text() == MISSING


def test_smallest_phases_are_not_listed() -> None:
    phases = dict(x=phase(0.09), y=phase(0.11), z=phase(50.0))
    found = compare(log(iterations=10, phases=phases), log(iterations=10, phases=phases))
    assert [row.name for row in found.rows if 'share' in row.name] == ['z, share', 'y, share']


def test_shares_change_by_points_and_counts_by_nothing() -> None:
    a = log(iterations=100, cv=0.01, memory=dict(peak=dict(ram_used=0.4)))
    b = log(iterations=130, cv=0.04, memory=dict(peak=dict(ram_used=0.4)))
    texts = {row.name: row.change_text() for row in compare(a, b).rows}
    assert texts == {
        'iterations': MISSING,
        'coefficient of variation': '+3.0 points worse ',
        'peak RAM in use': '+0.0 points',
    }


@pytest.mark.parametrize(
    ('a', 'b', 'text'),
    [
        (1 << 30, 3 << 29, '+50.0 % worse '),
        (512, 3 << 30, '+3.00 GiB worse '),
        (512, 1024, MISSING),
        (None, 1 << 30, MISSING),
    ],
)
def test_small_sizes_have_no_ratio(a: int | None, b: int, text: str) -> None:
    logs = [log(memory=dict(peak=dict(device=dict(allocated=one)))) for one in (a, b)]
    (row,) = compare(*logs).rows
    assert row.change_text() == text


def test_both_times_of_a_row_have_one_unit() -> None:
    found = compare(log(p50=0.31, p95=4e-7), log(p50=1.2, p95=0.0034))
    assert [row.texts() for row in found.rows] == [('0.310 s', '1.20 s'), ('0.400 us', '3.40 ms')]


def test_differences_are_listed_before_the_table() -> None:
    parts = ['PrefetchIterBasedTrainLoop', 'SparseAmpOptimWrapper']
    a = log(
        iterations=400, machine=dict(cpu='A', cores=2, versions=dict(mmengine='1', mmcv='2')),
        setting=dict(config='a/x.py', num_workers=2, pin_memory=True, world=1,
                     parts=[*parts, 'IterTimerHook'], shapes=[[2, 3, 512, 512]]),
        pressure=dict(cpu=0.65, memory=0.01, others=0.3, busy=0.9),
    )  # fmt: skip
    b = log(
        iterations=400, machine=dict(cpu='A', cores=2, versions=dict(mmengine='1', mmcv='3')),
        setting=dict(config='b/x.py', num_workers=8, pin_memory=False, log_interval=50, world=1,
                     parts=parts, shapes=[[2, 3, 256, 256]]),
        pressure=dict(cpu=0.02, memory=0.02, busy=0.96, io=0.5),
    )  # fmt: skip
    found = compare(a, b)
    assert found.differences == [
        'settings: num workers 2 against 8; pin memory yes against no; '
        'shapes [2, 3, 512, 512] against [2, 3, 256, 256]; only A has IterTimerHook',
        'machine: mmcv 2 against 3',
        'pressure: waiting for a CPU 65 % against 2.0 %; CPU time in use 90 % against 96 %',
    ]
    assert found.unfit == []
    lines = shown(found).splitlines()
    assert lines[2:5] == found.differences
    assert lines[5].split() == ['A', 'B', 'B', 'against', 'A']


def test_input_sizes_of_the_summary_are_listed() -> None:
    found = compare(log(inputs=[[2, 3, 64, 64]]), log(inputs=[[2, 3, 32, 64], [2, 3, 64, 64]]))
    assert found.differences[0] == (
        'settings: inputs [2, 3, 64, 64] against [2, 3, 32, 64], [2, 3, 64, 64]'
    )


def test_equal_runs_on_a_loaded_machine_have_no_differences() -> None:
    both = log(iterations=400, machine=dict(cores=2), pressure=dict(cpu=0.9), status='completed')
    assert compare(both, both).differences == []


def test_limits_of_the_figures_are_listed() -> None:
    a, b = (log(machine=dict(cores=2), status=status) for status in ('running', 'interrupted'))
    assert compare(a, b).differences == [
        'A: the run did not complete (running); its figures are partial',
        'B: the run did not complete (interrupted); its figures are partial',
    ]
    text = '\n'.join(compare(a, RunLog(Path(), 'stock')).differences)
    assert 'stock logs only' in text
    assert 'those of the other run (0 s) are excluded' in text
    assert 'the machine of B is unknown' in text


@pytest.mark.parametrize(
    ('setting', 'other', 'reasons'),
    [
        (dict(model='A'), dict(model='B'), ['model A against B']),
        (dict(model='A', parameters=1), dict(model='A', parameters=2), ['parameters 1 against 2']),
        (dict(model='A'), {}, []),  # unknown
        (dict(batch_size=2), dict(batch_size=4), []),  # samples per second are comparable
        (dict(config='c/x.py'), dict(config='d/y.py'), []),
    ],
)
def test_runs_of_another_model_cannot_be_compared(
    setting: dict, other: dict, reasons: list[str]
) -> None:
    a, b = (log(iterations=400, it_per_s=1.0, setting=one) for one in (setting, other))
    found = compare(a, b)
    assert found.unfit == reasons
    text = shown(found)
    assert ('cannot be compared: ' + '; '.join(reasons) in text) == bool(reasons)
    assert ('B against A' in text) == (not reasons)


@pytest.mark.parametrize('key', ['cpu', 'cores', 'torch'])
def test_other_machines_are_listed_first(key: str) -> None:
    a, b = (log(iterations=400, machine={key: value}) for value in ('1', '2'))
    found = compare(a, b)
    assert found.unfit == []
    assert found.differences == [f'machine: {key} 1 against 2']


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
        assert 'those of the other run (1 min 40 s) are excluded too' in ''.join(found.differences)
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
        (dict(), f'B (somewhere) has {MISSING} iterations, at least 20 are needed'),
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
    assert any(
        line.split()[:3] == ['iterations', '400', str(count)] for line in shown(found).splitlines()
    )
    start = f"lengths: 400 iterations against {count}; 'end to end' includes warm-up"
    assert any(text.startswith(start) for text in found.differences) == warns
