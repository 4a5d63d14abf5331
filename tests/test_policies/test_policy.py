"""Policies are found, and mistakes in them are told by their key."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmtempo.policies import POLICIES, find_policy, load_policy


@pytest.mark.parametrize('name', POLICIES)
def test_each_policy_is_data_with_its_reasons(name: str) -> None:
    policy = load_policy(name)
    assert policy['policy'] == name
    text = Path(find_policy(name)).read_text()
    lines = text.splitlines()
    assert lines[0].startswith('# '), 'whom it is for'
    assert len(lines) <= 20
    assert text.count('#') >= 4, 'the why of its values'


def test_the_notes_table() -> None:
    """Batch 4 of the field notes: 6 balanced, 4 for speed, 8 for memory, 2 x 4 accumulated."""
    found = {name: load_policy(name) for name in POLICIES}
    batches = {name: (4 * one['batch'], one['accumulate']) for name, one in found.items()}
    assert batches == dict(
        baseline=(4, 1), balanced=(6, 1), speed_first=(4, 1), memory_first=(8, 1), grad_accum=(4, 2)
    )
    assert [name for name, one in found.items() if one['amp'] is None] == ['baseline']


def test_options_change_it() -> None:
    options = {'tempo.lr': 'sqrt', 'tempo.loader.prefetch_factor': 6, 'model.x': 1}
    policy = load_policy('balanced', options)
    assert policy['lr'] == 'sqrt'
    assert policy['loader']['prefetch_factor'] == 6
    assert 'model' not in policy
    switched_on = load_policy('baseline', {'tempo.amp.dtype': 'bfloat16'})
    assert switched_on['amp'] == dict(dtype='bfloat16')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'tempo.lr': 'quadratic'}, r"tempo\.lr must be one of linear, sqrt, keep, found 'quad"),
        ({'tempo.batch': 0}, r'tempo\.batch must be a number above 0'),
        ({'tempo.acumulate': 2}, r'tempo\.acumulate: .*did you mean accumulate'),
        ({'tempo.accumulate': 1.5}, r'tempo\.accumulate must be .* found 1.5'),
        ({'tempo.amp': dict(scale=1)}, r'tempo\.amp must be None, or a dict of loss_scale, dtype'),
        ({'tempo.length': 'epochs'}, r'tempo\.length must be one of samples, iterations'),
        ({'tempo.keep_checkpoints': 0}, r'tempo\.keep_checkpoints must be'),
    ],
)
def test_what_a_policy_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy('balanced', options)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('speed-first', 'take one of baseline, balanced.*did you mean speed_first'),
        ('turbo', 'there is no such policy'),
        ('mine.py', 'there is no such file'),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(name)


def test_a_policy_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(
        f"_base_ = ['{find_policy('balanced')}']\ntempo = dict(policy='mine', batch=3.0)\n"
    )
    assert load_policy(str(path))['batch'] == 3
    path.write_text("tempo = dict(policy='mine')\n")
    with pytest.raises(ValueError, match=r'mine\.py: tempo lacks accumulate, amp, batch'):
        load_policy(str(path))
    path.write_text('batch = 3\n')
    with pytest.raises(ValueError, match=r'has no tempo=dict'):
        load_policy(str(path))
