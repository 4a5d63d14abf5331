"""Modules whose forward pass is not called: their children are measured instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.testing.profiled_models import Clock, Segmentor, profile_of, shares, taken, train


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rest_includes_what_children_do_not_cover(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.0.second', 'heads.0', 'backbone', 'heads.1'])
    train(model, profile, 2)
    # Of each head, the time before its first child and after its loss.
    assert profile.rest().seconds == pytest.approx((7 + 2 * (100 + 20 + 100)) / 1000)
    assert sum(shares(profile, 'backbone', 'heads.0', 'heads.1')) == pytest.approx(1)
    assert profile.seen_by_children() == ['heads.0', 'heads.1']


def test_span_from_first_child_to_end_of_loss(clock: Clock) -> None:
    """Its span is from its first child to the end of its loss."""
    model = Segmentor(clock)
    profile = profile_of(model, 'auto')
    train(model, profile, 2)
    each = 2 + 1 + 3 + 10 + 4
    assert taken(profile) == {
        'backbone': (1, 1000),
        'heads.0': (1, each),
        'heads.1': (1, each),
    }


def test_loss_after_the_forward_pass_extends_the_span(clock: Clock) -> None:
    model = Segmentor(clock)
    for head in model.heads:
        head.calls_itself = True
    profile = profile_of(model, ['heads'])
    train(model, profile, 2)
    each = 20 + 2 + 1 + 3 + 10 + 4
    assert taken(profile) == {'heads.0': (1, each), 'heads.1': (1, each)}


def test_named_children_have_their_own_spans(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.0.second', 'heads.0', 'heads.0.criteria'])
    train(model, profile)
    assert taken(profile) == {
        'heads.0.second': (1, 3),
        'heads.0': (1, 20),
        'heads.0.criteria.0': (1, 4),
    }


def test_other_module_between_children_ends_the_span(clock: Clock) -> None:
    class Between(Segmentor):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.heads[0].first(x)
            return self.heads[0].second(self.backbone(x))

    model = Between(clock)
    profile = profile_of(model, 'auto')
    train(model, profile)
    train(model, profile)
    assert taken(profile) == {'backbone': (1, 1000), 'heads.0': (2, 5)}


def test_spans_do_not_continue_in_the_next_pass(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, ['heads.1'])
    for _ in range(2):
        model(torch.ones(1))
        clock.now += 500
    profile.end_iteration()
    assert taken(profile) == {'heads.1': (2, 2 * 20)}


def test_interrupted_pass_is_dropped(clock: Clock) -> None:
    model = Segmentor(clock)
    profile = profile_of(model, 'auto')

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.heads[1].second.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1))
    profile.end_iteration()
    handle.remove()
    train(model, profile)
    assert taken(profile) == {'backbone': (1, 1000), 'heads.0': (1, 20), 'heads.1': (1, 20)}
