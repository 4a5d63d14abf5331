"""Suggestions for misspelled names."""

from mmtempo.utils.suggest import did_you_mean


def test_the_closest_name_is_suggested() -> None:
    assert did_you_mean('intervall', ['interval', 'by_epoch']) == '; did you mean interval?'
    assert did_you_mean('intervall', ['interval'], prefix='logger.') == (
        '; did you mean logger.interval?'
    )


def test_several_names_are_joined() -> None:
    assert did_you_mean('layer3', ['layer1', 'layer2'], most=2) == (
        '; did you mean layer2 or layer1?'
    )


def test_nothing_is_suggested_where_nothing_is_similar() -> None:
    assert did_you_mean('zzz', ['interval', 3]) == ''
