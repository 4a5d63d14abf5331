"""The figures that the terminal and the page show."""

from __future__ import annotations

from typing import Any

from mmtempo.report import sections
from mmtempo.report.format import MISSING
from mmtempo.report.sections import Figure, Section, Sentence, Share
from tests.testing.made_up import made_up_run
from tests.testing.summaries import comb, summary


def shown(section: Section, brief: bool = False) -> list[list[Any]]:
    """Return the names and then the rows of the columns that are shown."""
    columns = list(section.columns(brief))
    return [[name for name, *_ in columns], *map(list, zip(*(cells for *_, cells in columns)))]


def test_columns_without_a_value_and_details_are_omitted() -> None:
    rows = [['', MISSING, 1, MISSING, 'x'], ['', '', 2, 0, 'y']]
    section = Section('', ('<a', 'b', 'c', '+d', '+<e'), rows)
    assert list(section.columns()) == [
        ('a', True, ['', '']), ('c', False, [1, 2]), ('d', False, [MISSING, 0]),
        ('e', True, ['x', 'y']),
    ]  # fmt: skip
    assert [name for name, *_ in section.columns(brief=True)] == ['a', 'c']


def test_figures_are_those_that_were_measured() -> None:
    assert sections.figures({}) == []
    found = dict(it_per_s=8.0, samples_per_s=32.0, cv=0.031, p50=0.125)
    assert sections.figures(found, 'as logged') == [
        Figure('as logged', '8.00 it/s', '32.0 samples/s'),
        Figure('variation', '3.1 %', 'even (target < 10 %)'),
        Figure('iteration, p50', '125 ms'),
    ]
    lost = dict(share=0.1, seconds=2.0, count=1)
    assert sections.figures(dict(steady=9.0, cv=0.2, lost=lost, p50=1.0, p99=2.0)) == [
        Figure('steady', '9.00 it/s'),
        Figure('lost to stalls', '10 %', '2.00 s in 1 iteration'),
        Figure('variation', '20 %', 'uneven (target < 10 %)'),
        Figure('iteration, p50', '1.00 s', 'p99 2.00 s'),
    ]
    assert Figure('lost to stalls', 'nothing') in sections.figures(summary())
    assert Figure('device busy', '96 %', 'mean of 100 readings') in sections.figures(summary())


def test_both_forms_of_a_section_have_the_same_figures() -> None:
    for found in (comb(), summary(), made_up_run(iterations=700)[0]):
        for make in (sections.phases, sections.stages, sections.stalls):
            full, brief = shown(make(found)), shown(make(found, brief=True), brief=True)
            kept = [full[0].index(name) for name in brief[0]]
            expected = [[row[index] for index in kept] for row in full]
            for row in expected:
                row[0] = str(row[0]).removeprefix('hook:')
            for row in brief[1:]:
                assert [str(row[0]), *row[1:]] in expected or row[0].endswith(' more')


def test_phases_have_shares_quantiles_and_device_time() -> None:
    phases = dict(
        data=dict(seconds=2.0, share=0.2, p50=0.1, p95=0.2, p99=0.3),
        forward=dict(seconds=7.97, share=0.797, p50=0.8, p95=0.9, p99=1.0),
        step=dict(seconds=0.03, share=0.003, p50=0.003, p95=0.003, p99=0.003),
        idle=dict(seconds=0.0, share=0.0),
    )
    found = dict(phases=phases, iterations=10, device=dict(forward=dict(seconds=5.0, count=10)))
    assert shown(sections.phases(found)) == [
        ['phase', 'share', 'total', 'per iteration', 'p50', 'p95', 'p99', 'device time'],
        ['forward', Share(0.797), '7.97 s', '797 ms', '800 ms', '900 ms', '1.00 s', '500 ms'],
        ['data', Share(0.2), '2.00 s', '200 ms', '100 ms', '200 ms', '0.300 s', MISSING],
        ['step', Share(0.003), '30.0 ms', '3.00 ms', '3.00 ms', '3.00 ms', '3.00 ms', MISSING],
    ]
    brief = shown(sections.phases(found, brief=True), brief=True)
    assert brief[0] == ['phase', 'share', 'total', 'per iteration', 'p50', 'p95']
    assert brief[-1] == ['1 more', Share(0.003), '30.0 ms', '', '', '']


def test_times_of_a_column_have_one_unit() -> None:
    by_cause = {str(one): dict(seconds=one, count=1) for one in (0.31, 1.2, 0.0031)}
    lost = [row[2] for row in shown(sections.causes(dict(lost=dict(by_cause=by_cause))))]
    assert lost == ['lost', '1.20 s', '0.310 s', '3.10 ms']


def test_phases_without_percentiles_have_no_columns_for_them() -> None:
    found = dict(phases=dict(data=dict(seconds=2.0, share=0.25)))
    assert shown(sections.phases(found))[0] == ['phase', 'share', 'total']


def test_stages_have_title_notes_and_calls() -> None:
    found = [
        dict(name='net.0', type='A', share=0.4, seconds=0.1, calls=1.0),
        dict(name='net', type='B', share=0.9, seconds=0.2, calls=0.25),
    ]
    stages = dict(iterations=7, asked=10, stages=found, never_called=['a'], by_children=['net'])
    section = sections.stages(dict(stages=stages))
    assert section.title == 'Forward pass by stage, 7 of 10 iterations (the run ended)'
    assert shown(section) == [
        ['stage', 'type', 'share', 'host time', 'calls'],
        ['net.0', 'A', Share(0.4), '100 ms', '1'],
        ['net', 'B', Share(0.9), '200 ms', '0.25'],
    ]
    assert len(section.notes) == 3


def test_slowest_rank_is_listed() -> None:
    data = dict(max=0.21, rank=3, mean=0.02, usual=1, often=30, of=40)
    assert shown(sections.ranks(dict(ranks=dict(data=data, step=dict(max=0.5, rank=0))))) == [
        ['per iteration', 'mean', 'last window', 'usually'],
        ['data', '20.0 ms', '210 ms, rank 3', 'rank 1, in 30 of 40 windows'],
        ['step', MISSING, '500 ms, rank 0', ''],
    ]


def test_stalls_are_listed_by_cost_with_evidence() -> None:
    evidence = dict(worker=3)
    stalls: list[dict] = [dict(iter=i, lost=i / 10) for i in range(300)]
    stalls[7].update(
        lost=99.0, seconds=100.0, cause='EMAHook', phase='hook:EMAHook', text='So.',
        evidence=evidence,
    )  # fmt: skip
    stalls[8].update(lost=98.0, cause='page faults', phase='forward')
    rows = shown(sections.stalls(dict(stalls=stalls)))
    assert rows[0] == ['iteration', 'lost', 'took', 'cause', 'phase', 'description']
    assert rows[1][2:] == ['1 min 40 s', 'EMAHook', '', Sentence('So.', evidence)]
    assert rows[2][2:] == [MISSING, 'page faults', 'forward', Sentence('page faults')]
    assert [row[0] for row in rows[3:]] == [*range(299, 101, -1)]
    brief = shown(sections.stalls(dict(stalls=stalls), brief=True), brief=True)
    assert [row[0] for row in brief] == ['iteration', 7, 8, 299, 298, 297]


def test_periods_name_what_recurs() -> None:
    period = dict(every=8, what='num_workers', cause='a', count=3, of=4, text='a: each 8th.')
    rows = shown(sections.periods(dict(periods=[period, dict(every=5, what='x', cause='b')])))
    assert rows == [
        ['cause', 'period', 'equals', 'stalls', 'description'],
        ['a', 'every 8', 'num_workers', '3 of 4', Sentence('each 8th.')],
        ['b', 'every 5', 'x', f'{MISSING} of {MISSING}', Sentence('every 5 iterations = x')],
    ]


def test_empty_summary_has_no_rows() -> None:
    for make in (
        sections.phases, sections.stages, sections.ranks, sections.causes, sections.stalls,
        sections.periods,
    ):  # fmt: skip
        assert make({}).rows == []
