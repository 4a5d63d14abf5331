"""The grid counts its cells, and refuses ranges without whole cells."""

import pytest

from mmtempo.workloads.bev.structures.grid import LABEL_GRID, BEVGrid


def test_default_grids_have_the_specified_size() -> None:
    assert (BEVGrid().rows, BEVGrid().columns) == (98, 100)
    assert (LABEL_GRID.rows, LABEL_GRID.columns) == (196, 200)


def test_a_dimension_may_have_one_cell() -> None:
    grid = BEVGrid(x=(0.0, 1.0, 1.0), z=(1.0, 1.1, 0.1))
    assert (grid.rows, grid.columns) == (1, 1)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(x=(-3.0, 3.0, 0.7)), r'grid.x .* whole number of cells'),
        (dict(z=(5.0, 1.0, 0.5)), r'grid.z .* found -8'),
        (dict(x=(0.0, 1.0, 0.0)), r'grid.x'),
        (dict(y=(1.0, -1.0)), r'grid.y = .* upper bound'),
    ],
)
def test_errors_name_the_invalid_range(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BEVGrid(**arguments)
