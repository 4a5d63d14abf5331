"""Policies are found by name or path, and errors name the key of a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmtempo.policies import POLICIES, find_policy, load_policy


@pytest.mark.parametrize('name', POLICIES)
def test_each_policy_file_is_short_and_commented(name: str) -> None:
    policy = load_policy(name)
    assert policy['policy'] == name
    text = Path(find_policy(name)).read_text()
    lines = text.splitlines()
    assert lines[0].startswith('# '), 'the purpose'
    assert len(lines) <= 20
    assert text.count('#') >= 4, 'reasons of its values'


def test_batches_are_those_of_the_field_notes() -> None:
    """From batch 4: 6 balanced, 4 for speed, 8 for memory, 2 x 4 accumulated."""
    policies = {name: load_policy(name) for name in POLICIES}
    batches = {name: (4 * one['batch'], one['accumulate']) for name, one in policies.items()}
    assert batches == dict(
        baseline=(4, 1), balanced=(6, 1), speed_first=(4, 1), memory_first=(8, 1), grad_accum=(4, 2)
    )
    assert [name for name, one in policies.items() if one['amp'] is None] == ['baseline']


def test_options_override_the_policy() -> None:
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
def test_invalid_value_is_an_error(options: dict, message: str) -> None:
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
def test_unknown_name_is_an_error(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(name)


def test_policy_file_is_loaded_and_checked(tmp_path: Path) -> None:
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
