"""Flags of the tools."""

from __future__ import annotations

import argparse

import pytest

from mmtempo.cli.arguments import add_config_arguments
from mmtempo.policies import POLICIES
from tests.testing.command_line import parse


def test_option_without_a_value_is_an_error(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse('c.py', '--cfg-options', 'train_cfg.max_iters')
    assert '--cfg-options train_cfg.max_iters: expected KEY=VALUE' in capsys.readouterr().err


def test_options_are_parsed_as_mmengine_does() -> None:
    args = parse('c.py', '--cfg-options', 'a.b=2', 'c=[(1,2),(3,4)]', 'd=x,y')
    assert args.cfg_options == {'a.b': 2, 'c': [(1, 2), (3, 4)], 'd': ['x', 'y']}


def test_config_arguments_have_the_defaults_of_a_single_process() -> None:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_args(['c.py'])
    assert vars(args) == dict(
        config='c.py', cfg_options=None, work_dir=None, launcher='none', local_rank=0
    )
    with pytest.raises(SystemExit):
        parser.parse_args(['c.py', '--launcher', 'slurm'])


def test_local_rank_of_the_older_launcher_is_accepted() -> None:
    assert parse('c.py', '--local-rank', '1').local_rank == 1
    assert parse('c.py', '--local_rank=2').local_rank == 2


def test_help_of_tempo_names_all_policies(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse('--help')
    text = ' '.join(capsys.readouterr().out.split())
    assert ', '.join(POLICIES) in text
