"""The watch names the first bad iteration, and nothing that is harmless."""

from __future__ import annotations

import pytest

from mmtempo.logging.nonfinite import NonFiniteError, NonFiniteWatch

NAN, INF = float('nan'), float('inf')


def row(**values: float) -> list[tuple[str, float, int]]:
    return [(key.replace('__', '/'), value, 1) for key, value in values.items()]


def test_stops_with_iteration_values_and_advice() -> None:
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


def test_a_gradient_alone_is_enough() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(2, row(train__loss=1.0, watch__grad_norm=NAN))
    with pytest.raises(NonFiniteError, match='iteration 3: losses finite; gradient norm nan'):
        watch.check()


def test_what_is_no_loss_may_be_nan() -> None:
    watch = NonFiniteWatch('stop', print)
    # An accuracy without a pixel, and a norm that the scaler takes care of.
    watch.look(0, row(train__acc_seg=NAN, train__grad_norm=INF, val__loss=NAN))
    watch.check()


def test_warns_once_a_window() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('warn', said.append)
    for iteration in range(3, 6):
        watch.look(iteration, row(train__loss=NAN))
    watch.check()
    watch.check()
    assert said == [
        'Non-finite values at iteration 4: loss nan; gradient norm not computed. '
        'They went on: 3 iterations up to 6.'
    ]


def test_skipped_updates_are_named() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('skip', said.append)
    for iteration in range(20):
        watch.look(iteration, row(train__loss=1.0, watch__skipped=float(iteration % 2)))
    watch.check()
    assert said == [
        '10 updates were skipped because of non-finite gradients, at iterations '
        '2, 4, 6, 8, 10, 12, 14, 16, 18, 20.'
    ]


def test_a_scale_that_has_collapsed() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(3, row(train__loss=1.0, watch__loss_scale=1e-5))
    watch.check()
    watch.look(8, row(train__loss=1.0, watch__loss_scale=1e-7))
    with pytest.raises(
        NonFiniteError,
        match='iteration 9: losses finite; gradient norm not computed; loss scale after the update '
        '1e-07, as every update overflows',
    ):
        watch.check()


def test_of_two_optimizers_the_bad_one_is_named() -> None:
    watch = NonFiniteWatch('stop', print)
    watch.look(0, [('watch/grad_norm', NAN, 1), ('watch/grad_norm', 2.0, 1)])
    with pytest.raises(NonFiniteError, match='gradient norm nan'):
        watch.check()


def test_skipping_ends_where_the_weights_are_bad() -> None:
    said: list[str] = []
    watch = NonFiniteWatch('skip', said.append)
    watch.look(0, row(train__loss=NAN))
    watch.check()
    watch.found(5, 'net.weight of the model', in_weights=True)
    with pytest.raises(NonFiniteError, match='iteration 6: net.weight'):
        watch.check()
    assert len(said) == 2


def test_the_earliest_iteration_is_named() -> None:
    """Weights of iteration 5 are judged after the loss of iteration 7 has arrived."""
    watch = NonFiniteWatch('stop', print)
    watch.look(6, row(train__loss=NAN))
    watch.found(4, 'net.weight of the model', in_weights=True)
    watch.found(8, 'something later')
    with pytest.raises(NonFiniteError, match=r'iteration 5: net.weight'):
        watch.check()


def test_unknown_action() -> None:
    with pytest.raises(ValueError, match="on_nonfinite='ignore' is unknown; use one of 'stop'"):
        NonFiniteWatch('ignore', print)
