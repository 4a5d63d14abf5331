"""The table at the end of a run: complete, within the width, and plain text in a log."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from mmtempo.report.terminal import table, to_text
from mmtempo.report.verdict import judge
from tests.testing.summaries import comb, summary


def judged(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, 'verdict': dataclasses.asdict(judge(found))}


@pytest.mark.parametrize('width', [80, 100])
@pytest.mark.parametrize('found', [judged(comb()), judged(summary())], ids=['comb', 'calm'])
def test_text_is_ascii_and_fits_the_width(width: int, found: dict[str, Any]) -> None:
    text = to_text(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    assert '\x1b' not in text


def test_verdict_comes_before_figures() -> None:
    text = to_text(judged(comb()))
    parts = [
        'Throughput  5000 iterations in 12 min 58 s  completed',
        'Waiting for data takes 9.9 % of the time.',
        '- Waiting for data: 77.0 s, 9.9 % of the time',
        '--cfg-options',
        'train_dataloader.num_workers=10',
        '8 workers on 16 cores; about 10 are needed',
        '  steady          7.14 it/s, 28.6 samples/s',
        '  end to end      6.43 it/s, 25.7 samples/s',
        '  lost to stalls  11 %, 85.0 s in 611 iterations',
        '  variation       31 %, uneven (target < 10 %)',
        '  iteration, p50  140 ms, p95 270 ms, p99 300 ms',
        '  device busy     96 %, mean of 100 readings',
        'Time by phase',
        'Time lost by cause',
        'Longest stalls',
        'Periodic stalls',
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_phases_are_listed_by_share() -> None:
    lines = to_text(judged(comb())).splitlines()
    start = lines.index('Time by phase')
    names = [line.split()[0] for line in lines[start + 2 : start + 7]]
    assert names == ['backward', 'forward', 'data', 'step', 'evaluation']
    assert lines[start + 4].split() == ['data', '9.9', '%', '##', '77.0', 's', '15.4', 'ms',
                                        '300', 'us', '16.9', 'ms']  # fmt: skip
    assert lines[start + 7].split()[:4] == ['9', 'more', '0.9', '%']


def test_hooks_are_named_by_their_class() -> None:
    text = to_text(judged(summary(phases={'hook:SparseRuntimeInfoHook': 50.0})), 80)
    assert '  SparseRuntimeInfoHook' in text
    assert 'hook:' not in text


def test_five_longest_stalls_are_listed() -> None:
    lines = to_text(judged(comb())).splitlines()
    start = lines.index('Longest stalls')
    rows = [line.split() for line in lines[start + 2 : start + 7]]
    assert [row[0] for row in rows] == ['4210', '402', '1818', '3402', '2610']
    # Text in brackets is not markup of rich.
    assert rows[0][-2:] == ['[x]', '18']
    assert lines[start + 7] == ''


def test_periods_are_listed() -> None:
    assert to_text(judged(comb())).splitlines()[-1] == (
        '  worker 2 was late  every 8th iteration = num_workers: 602 of 610 stalls, on 97 % of its '
        'places'
    )
    period = dict(every=50, what='log_interval', cause='LoggerHook')
    text = to_text(dict(periods=[period]))
    assert text.endswith('  LoggerHook  every 50 iterations = log_interval')


def test_causes_beyond_five_are_summed() -> None:
    causes = {
        f'cause {index}': dict(seconds=8.0 - index, count=2, category='host') for index in range(7)
    }
    lost = dict(seconds=35.0, share=0.05, count=14, by_cause=causes)
    text = to_text(summary(lost=lost))
    assert 'cause 4' in text
    assert 'cause 5' not in text
    assert '2 more' in text


def test_missing_figures_have_no_line() -> None:
    text = to_text(dict(iterations=12, seconds=3.0, it_per_s=4.0))
    assert text.splitlines() == [
        'Throughput  12 iterations in 3.00 s',
        '',
        'Speed',
        '  end to end  4.00 it/s',
    ]
    assert to_text({}) == 'Throughput'


def test_missing_cells_are_dashes() -> None:
    forward, data = dict(seconds=6.0, share=0.75, p50=0.1), dict(seconds=2.0, share=0.25)
    lines = to_text(dict(phases=dict(forward=forward, data=data))).splitlines()
    assert lines[-3].split() == ['phase', 'share', 'total', 'p50']
    assert lines[-2].split() == ['forward', '75', '%', '#' * 12, '6.00', 's', '100', 'ms']
    assert lines[-1].split() == ['data', '25', '%', '####', '2.00', 's', '-']


def test_error_of_a_crash_is_shown() -> None:
    text = to_text(summary(status='crashed', error='RuntimeError: [red]out[/red] of memory'))
    assert 'crashed: RuntimeError: [red]out[/red] of memory' in text


def test_run_without_stalls_lost_nothing() -> None:
    assert '  lost to stalls  nothing' in to_text(summary()).splitlines()


def test_long_override_is_not_cut() -> None:
    override = 'train_dataloader.dataset.' + 'a' * 90 + '=1'
    verdict = dict(headline='So.', change=[dict(override=override, why='because')])
    assert override in ''.join(to_text(dict(verdict=verdict), 80).split())


def test_terminal_gets_colors() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system='truecolor')
    console.print(table(judged(comb())))
    assert '\x1b[' in file.getvalue()
    assert '█' in file.getvalue()


def test_slowest_rank_is_listed() -> None:
    data = dict(max=0.21, rank=3, mean=0.04, usual=3, often=45, of=50)
    step = dict(max=0.15, rank=0)
    lines = to_text(judged(summary(ranks=dict(data=data, step=step)))).splitlines()
    assert lines[2] == '    Late data on rank 3 costs 28 % of the time.'
    start = lines.index('Slowest rank')
    assert lines.index('Time by phase') < start
    assert lines[start + 2].split('  ')[-1] == 'rank 3, in 45 of 50 windows'
    assert lines[start + 2].split()[:5] == ['data', '40.0', 'ms', '210', 'ms,']
    assert lines[start + 3].split() == ['step', '-', '150', 'ms,', 'rank', '0']


def stage(name: str, share: Any, **others: Any) -> dict[str, Any]:
    return dict(
        name=name, type='Any', calls=1, seconds=share and share / 100, share=share, **others
    )


def test_stages_are_listed_in_their_order() -> None:
    found = [stage('backbone', 0.5), stage('neck', 0.002), stage('rest of the forward pass', 0.498)]
    stages = dict(iterations=7, asked=100, stages=found, never_called=['head'], by_children=[])
    text = to_text(judged(summary(stages=stages)), 80)
    lines = text.splitlines()
    start = lines.index('Forward pass by stage, 7 of 100 iterations (the run ended)')
    assert lines.index('Time by phase') < start
    assert lines[start + 1].split() == ['stage', 'share', 'host', 'time']
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        ['backbone', '50', '%', '#' * 8, '5.00', 'ms'],
        ['neck', '0.2', '%', '20.0', 'us'],
        ['rest', 'of', 'the', 'forward', 'pass', '50', '%', '#' * 8, '4.98', 'ms'],
    ]
    assert lines[start + 5].startswith('  Never called in the forward pass: head. ')
    assert max(map(len, lines)) <= 80


def test_stages_have_device_time() -> None:
    found = [stage('backbone', 0.5, device_seconds=0.25), stage('rest', 0.5, device_seconds=None)]
    lines = to_text(dict(stages=dict(iterations=1, stages=found))).splitlines()
    assert lines[2] == 'Forward pass by stage, in 1 iteration'
    assert lines[3].split() == ['stage', 'share', 'device', 'time', 'host', 'time']
    assert lines[4].split()[-4:] == ['250', 'ms', '5.00', 'ms']
    assert lines[5].split()[-3:] == ['-', '5.00', 'ms']


def test_smallest_of_many_stages_are_cut_except_the_rest() -> None:
    found = [stage(f'blocks.{index}', (7 * index % 25) / 1000) for index in range(25)]
    lines = to_text(dict(stages=dict(stages=[*found, stage('rest', 0.0001)]))).splitlines()
    names = [line.split()[0] for line in lines[4:-1]]
    kept = [one['name'] for one in found if one['share'] >= 0.005]
    assert names == [*kept, 'rest']
    assert lines[-1] == '  5 smaller stages not listed.'


def test_stages_may_lack_figures() -> None:
    assert to_text(dict(stages=None)) == to_text(dict(stages=dict(stages=[]))) == 'Throughput'
    line = to_text(dict(stages=dict(stages=[dict(share=None)]))).splitlines()[-1]
    assert line.split() == ['-', '-']


def test_single_iteration_is_not_a_plural() -> None:
    lost = dict(seconds=2.0, share=0.1, count=1, by_cause={})
    text = to_text(dict(iterations=1, lost=lost))
    assert 'Throughput  1 iteration' in text
    assert 'in 1 iteration\n' in f'{text}\n'
    assert '1 iterations' not in text
