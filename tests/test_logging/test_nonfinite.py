"""The first iteration with non-finite losses is reported, and harmless values are not."""

from __future__ import annotations

import pytest

from mmtempo.logging.nonfinite import NonFiniteError, NonFiniteWatch

NAN, INF = float('nan'), float('inf')


def row(**values: float) -> list[tuple[str, float, int]]:
    return [(key.replace('__', '/'), value, 1) for key, value in values.items()]


def test_error_names_iteration_values_and_advice() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('stop', said.append, lambda: 'Do this.')
    watch.look(5, row(train__loss=1.0, watch__grad_norm=2.0))
    watch.check()
    watch.look(
        6, row(train__loss=NAN, train__loss_ce=1.0, watch__grad_norm=INF, watch__loss_scale=512.0)
    )
    watch.look(7, row(train__loss=INF))
    with pytest.raises(NonFiniteError) as error:
        watch.check()
    assert str(error.value) == (
        'Non-finite values at iteration 7: loss nan; gradient norm inf; '
        'loss scale after the update 512.\nDo this.'
    )
    assert said == [str(error.value)]
    watch.check()  # once


def test_a_non_finite_gradient_norm_stops() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(2, row(train__loss=1.0, watch__grad_norm=NAN))
    with pytest.raises(NonFiniteError, match='iteration 3: losses finite; gradient norm nan'):
        watch.check()


def test_values_other_than_losses_may_be_nan() -> None:
    watch = NonFiniteWatch('stop', print)
    # An accuracy without pixels, and a norm that the gradient scaler handles.
    watch.look(0, row(train__acc_seg=NAN, train__grad_norm=INF, val__loss=NAN))
    watch.check()


def test_one_warning_a_window() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('warn', said.append)
    for iteration in range(3, 6):
        watch.look(iteration, row(train__loss=NAN))
    watch.check()
    watch.check()
    assert said == [
        'Non-finite values at iteration 4: loss nan; gradient norm not computed. '
        '3 iterations up to 6 are affected.'
    ]


def test_skipped_updates_are_listed() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('skip', said.append)
    for iteration in range(20):
        watch.look(iteration, row(train__loss=1.0, watch__skipped=float(iteration % 2)))
    watch.check()
    assert said == [
        '10 updates were skipped because of non-finite gradients, at iterations '
        '2, 4, 6, 8, 10, 12, 14, 16, 18, 20.'
    ]


def test_a_collapsed_loss_scale_stops() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(3, row(train__loss=1.0, watch__loss_scale=1e-5))
    watch.check()
    watch.look(8, row(train__loss=1.0, watch__loss_scale=1e-7))
    with pytest.raises(
        NonFiniteError,
        match='iteration 9: losses finite; gradient norm not computed; loss scale after the update '
        '1e-07: every update overflows',
    ):
        watch.check()


def test_the_bad_optimizer_of_two_is_described() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(0, [('watch/grad_norm', NAN, 1), ('watch/grad_norm', 2.0, 1)])
    with pytest.raises(NonFiniteError, match='gradient norm nan'):
        watch.check()


def test_bad_weights_stop_a_run_that_skips_updates() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('skip', said.append)
    watch.look(0, row(train__loss=NAN))
    watch.check()
    watch.found(5, 'net.weight of the model', in_weights=True)
    with pytest.raises(NonFiniteError, match='iteration 6: net.weight'):
        watch.check()
    assert len(said) == 2


def test_the_earliest_iteration_is_reported() -> None:
    """Weights of iteration 5 are checked after the loss of iteration 7 has arrived."""
    watch = NonFiniteWatch('stop', print)
    watch.look(6, row(train__loss=NAN))
    watch.found(4, 'net.weight of the model', in_weights=True)
    watch.found(8, 'something later')
    with pytest.raises(NonFiniteError, match=r'iteration 5: net.weight'):
        watch.check()


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="on_nonfinite='ignore' is unknown; use one of 'stop'"):
        NonFiniteWatch('ignore', print)
