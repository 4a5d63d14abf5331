"""Options are checked, and errors name the key of the config."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.monitor.options import MonitorOptions

DEFAULTS = dict(interval=None, stall_factor=8.0, watch_interval=1.0, stage_profile=None)


def checked(**options: Any) -> MonitorOptions:
    return MonitorOptions(**{**DEFAULTS, **options})


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(interval=1, stall_factor=3, watch_interval=0),
        dict(stage_profile={}),
        dict(stage_profile=dict(modules=('net',), begin=0, iterations=1)),
    ],
)
def test_valid_options_are_kept(options: dict) -> None:
    assert vars(checked(**options)) == {**DEFAULTS, **options}


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(interval=0), 'interval must be an integer of at least 1, or None, found 0'),
        (dict(interval=True), 'interval must be an integer of at least 1, or None, found True'),
        (dict(interval=2.0), 'interval must be an integer of at least 1, or None, found 2.0'),
        (dict(stall_factor=0), 'stall_factor must be a number above 0, found 0'),
        (dict(stall_factor=float('nan')), 'stall_factor must be a number above 0, found nan'),
        (dict(watch_interval=-1), 'watch_interval must be seconds, or 0 to turn it off, found -1'),
        (
            dict(stage_profile=dict(begins=3)),
            "stage_profile must be a dict of 'modules', 'begin', 'iterations', found {'begins': 3}",
        ),
        (
            dict(stage_profile=dict(begin=-1)),
            'stage_profile.begin must be an integer of at least 0, found -1',
        ),
        (
            dict(stage_profile=dict(iterations=0)),
            'stage_profile.iterations must be an integer of at least 1, found 0',
        ),
        (
            dict(stage_profile=dict(modules='backbone')),
            "stage_profile.modules must be 'auto' or a list of names of the model's modules, "
            "found 'backbone'",
        ),
    ],
)
def test_invalid_option_raises(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        checked(**options)
    assert str(caught.value) == f'default_hooks.timer.{message}'
