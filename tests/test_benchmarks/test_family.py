"""Rounds, table and errors of the policies; and a real training of the mini config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mmtempo.benchmarks import family
from mmtempo.benchmarks.family import AS_GIVEN, FULL, Plan, PolicyError, measure_family, run_policy
from mmtempo.policies import POLICIES
from tests.testing.common import MINI, tiny_options

SPEED = dict(zip([AS_GIVEN, *POLICIES], [10.0, 10.0, 8.0, 12.0, 6.0, 7.0]))
SAMPLES = dict(zip([AS_GIVEN, *POLICIES], [4, 4, 6, 4, 8, 8]))


class Trainings:
    """Fake trainings with the speeds of `SPEED`, some of which fail."""

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.asked: list[str] = []
        self.broken = broken

    def __call__(
        self, config: str, policy: str, options: Sequence[str], plan: Plan
    ) -> dict[str, Any]:
        self.asked.append(policy)
        if policy in self.broken:
            raise PolicyError(f'{policy} is broken')
        speed, samples = SPEED[policy] + 0.1 * len(self.asked), SAMPLES[policy]
        return dict(
            it_per_s=speed, samples_per_s=speed * samples, cv=0.05, data_share=0.01,
            memory_bytes=3_000_000, samples=samples, iterations=plan.iterations,
        )  # fmt: skip


def test_each_round_has_all_policies_in_random_order() -> None:
    trainings = Trainings()
    report = measure_family(False, run=trainings)
    count = len(SPEED)
    rounds = [trainings.asked[i : i + count] for i in range(0, len(trainings.asked), count)]
    assert len(rounds) == FULL.rounds
    assert all(set(one) == set(SPEED) for one in rounds)
    assert len(set(map(tuple, rounds))) > 1
    assert list(report.arms) == list(SPEED)
    assert report.arms['balanced']['n'] == FULL.rounds


def test_table_has_machine_and_field_notes() -> None:
    report = measure_family(True, run=Trainings())
    text = report.notes[0]
    rows = {line.split('|')[1].strip(): line for line in text.splitlines() if line.startswith('|')}
    assert set(SPEED) <= set(rows)
    assert report.machine['cpu'] in text
    assert '| 5-6 | 15-18 GB |' in rows['balanced']
    assert 'not measured here' in text
    widths = {row.count('|') for row in rows.values()}
    assert widths == {len(family.HEAD) + 1}


def test_failed_policy_does_not_hide_the_others() -> None:
    trainings = Trainings(broken=['balanced'])
    report = measure_family(False, run=trainings)
    assert 'balanced' not in report.arms
    assert 'balanced is broken' in report.notes
    assert trainings.asked.count('balanced') == 1
    with pytest.raises(PolicyError, match='grad_accum is broken'):
        measure_family(True, run=Trainings(broken=list(SPEED)))


@pytest.mark.parametrize('policy', [pytest.param(AS_GIVEN, marks=pytest.mark.slow), 'grad_accum'])
def test_training_in_a_fresh_process_is_measured(policy: str, bev_root: str, tmp_path: Any) -> None:
    options = tiny_options(bev_root, tmp_path, iters=100)
    for key in ('work_dir', 'experiment_name', 'model.decode_head.num_blocks'):
        options.pop(key)
    grid = options.pop('model.view_transform.grid')
    options.update({f'model.view_transform.grid.{key}': list(one) for key, one in grid.items()})
    words = [f'{key}={value}' for key, value in options.items()]
    found = run_policy(str(MINI), policy, words, Plan(1, 3, 4))
    assert found['iterations'] == 4
    assert found['samples'] == (4 if policy == 'grad_accum' else 2)
    assert found['samples_per_s'] == pytest.approx(found['samples'] * found['it_per_s'])
    assert 0 <= found['data_share'] < 1
    assert found['memory_bytes'] > 100_000


def test_failed_training_is_an_error_with_its_message(tmp_path: Any) -> None:
    with pytest.raises(PolicyError, match='failed with exit code [12]: .*no such file'):
        run_policy(str(tmp_path / 'none.py'), AS_GIVEN, [], Plan(1, 3, 4))
