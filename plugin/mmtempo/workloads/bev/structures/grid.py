"""The BEV grid: cells of the ground plane."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BEVGrid:
    """Grid of cells: columns along x, left to right, and rows along z, back to front.

    The axes are those of the BEV frame: x right, y down, z ahead. With one camera, the BEV frame
    is the camera frame. With several, its origin is on the ground below the vehicle.

    Args:
        x: Lower bound, upper bound and cell size to the right, in meters.
            Defaults to (-25.0, 25.0, 0.5).
        z: Lower bound, upper bound and cell size ahead, in meters.
            Defaults to (1.0, 50.0, 0.5).
        y: Lower and upper bound below the origin, in meters; points outside are dropped.
            Defaults to (-10.0, 10.0).
    """

    x: tuple[float, float, float] = (-25.0, 25.0, 0.5)
    z: tuple[float, float, float] = (1.0, 50.0, 0.5)
    y: tuple[float, float] = (-10.0, 10.0)

    def __post_init__(self) -> None:
        for name in ('x', 'z'):
            lower, upper, step = getattr(self, name)
            cells = (upper - lower) / step if step > 0 else 0.0
            if cells < 1 or abs(cells - round(cells)) > 1e-6:
                raise ValueError(
                    f'grid.{name} = ({lower}, {upper}, {step}): the range must be a whole '
                    f'number of cells (at least one), found {cells:g}'
                )
        if self.y[1] <= self.y[0]:
            raise ValueError(f'grid.y = {self.y}: the upper bound must be greater than the lower')

    @property
    def columns(self) -> int:
        return round((self.x[1] - self.x[0]) / self.x[2])

    @property
    def rows(self) -> int:
        return round((self.z[1] - self.z[0]) / self.z[2])

    @property
    def cells(self) -> int:
        return self.rows * self.columns


# The grid of the labels on disk: 196 rows x 200 columns of 0.25 m.
LABEL_GRID = BEVGrid(x=(-25.0, 25.0, 0.25), z=(1.0, 50.0, 0.25))
