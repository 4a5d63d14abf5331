"""Processors and memory that a run lacks, and warnings of the run."""

from __future__ import annotations

import pytest

from mmtempo.report.verdict import judge
from tests.testing.summaries import summary
from tests.testing.verdict_cases import BUSY, TOTAL, losing
from tests.testing.verdicts import overrides

LESS_MEMORY = ['train_dataloader.prefetch_factor=1', 'train_dataloader.num_workers=4']


def test_busy_machine_makes_other_figures_unreliable() -> None:
    verdict = judge(summary(pressure=dict(queued=0.5, others=0.4)))
    assert verdict.headline == (
        'Other processes use 40 % of the CPU time: the figures of this run are unreliable.'
    )
    assert verdict.why[0].startswith(
        'The main thread was ready to run and waited for a CPU for 5 min 52 s, 50 % of the time.'
    )


@pytest.mark.parametrize('cause', ['waiting for a CPU', 'other processes had the CPU'])
def test_wait_for_a_cpu_counts_once(cause: str) -> None:
    verdict = judge(summary(**losing(0.2, cause, 'host'), pressure=BUSY))
    assert [finding.key for finding in verdict.findings] == ['busy machine']


def test_cpu_limit_is_that_of_all_cores() -> None:
    """`throttled` counts the seconds of each CPU."""
    verdict = judge(summary(pressure=dict(throttled=8.0)))
    assert verdict.headline == 'The CPU limit of the container costs 50 % of the time.'
    assert 'docker --cpus' in verdict.why[0]


def test_full_memory_is_reported_without_any_cost() -> None:
    verdict = judge(summary(memory=dict(peak=dict(ram_used=0.93))))
    assert verdict.headline.startswith('No recurring cost exceeds 3.0 % of the time.')
    assert '93 % of the memory was in use.' in verdict.why
    assert overrides(verdict) == LESS_MEMORY


@pytest.mark.parametrize(
    ('setting', 'advised'),
    [
        (dict(num_workers=0), []),
        (dict(num_workers=1, prefetch_factor=4), ['train_dataloader.prefetch_factor=2']),
        (dict(num_workers=8, prefetch_factor=1), ['train_dataloader.num_workers=4']),
        (dict(num_workers=8, prefetch_factor=None), ['train_dataloader.num_workers=4']),
    ],
)
def test_loader_takes_less_memory(setting: dict, advised: list[str]) -> None:
    assert overrides(judge(summary(setting=setting, pressure=dict(memory=0.1)))) == advised


def test_swapping_is_lack_of_memory() -> None:
    verdict = judge(summary(**losing(0.11, 'swapping', 'memory'), pressure=dict(swapped=3 << 30)))
    assert verdict.headline == 'Lack of memory costs 11 % of the time.'
    assert verdict.why == [
        '43 % of the memory was in use.',
        'Swapping: 77.4 s, 11 % of the time.',
        '3.00 GiB were read from swap.',
    ]
    assert overrides(verdict) == LESS_MEMORY


def test_pressure_of_memory_is_reported() -> None:
    verdict = judge(summary(pressure=dict(memory=0.2, swapped=1000)))
    assert verdict.why[1:] == ['A process waited for memory in 20 % of the time.']


@pytest.mark.parametrize(
    ('category', 'headline'),
    [
        ('host', 'Page faults on newly allocated memory cost 11 % of the time.'),
        ('memory', 'Lack of memory costs 11 % of the time.'),  # pages that are read from a disk
    ],
)
def test_page_faults_lack_memory_only_if_read_from_a_disk(category: str, headline: str) -> None:
    verdict = judge(summary(**losing(0.11, 'page faults', category)))
    assert verdict.headline == headline
    assert bool(verdict.change) == (category == 'memory')


def test_little_swapping_is_no_finding() -> None:
    verdict = judge(summary(**losing(2.0 / TOTAL, 'swapping', 'memory')))
    assert [finding.key for finding in verdict.findings] == ['healthy']


def test_first_warnings_are_passed_on() -> None:
    verdict = judge(summary(warnings=['/dev/shm is nearly full', 'b', 'c', 'd']))
    assert verdict.headline.startswith('No recurring cost exceeds 3.0 % of the time.')
    assert verdict.why[-3:] == ['/dev/shm is nearly full', 'b', 'c']
