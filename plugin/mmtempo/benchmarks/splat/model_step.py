"""One training step of a shipped BEV config on random images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmtempo.cli.config import resolve_config_path
from mmtempo.workloads.bev.models.splat import splat
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration


class TrainingStep:
    """Training step of a model: each call runs forward, loss, backward and optimizer step.

    Args:
        config: Path below `configs/` of a config with one camera.
        size: Height and width of the images.
        batch: Number of samples of a step.
        splat: Formulation, as of `LiftSplatShoot`.
    """

    def __init__(self, config: str, size: tuple[int, int], batch: int, splat: str) -> None:
        torch.manual_seed(0)
        cfg = Config.fromfile(resolve_config_path(f'mmtempo::{config}'))
        cfg.model.backbone.init_cfg = None  # weights do not change the time of a step
        cfg.model.view_transform.splat = splat
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            self.model = MODELS.build(cfg.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        height, width = size
        focal = 0.7 * width
        intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
        samples = [
            BEVDataSample(
                metainfo=dict(calibration=Calibration.native(intrinsics, (width, height))),
                gt_bev=torch.zeros(196, 200, dtype=torch.int16),
            )
            for _ in range(batch)
        ]
        images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)
        self.data = dict(inputs=images, data_samples=samples)

    def __call__(self) -> None:
        data = self.model.data_preprocessor(self.data, True)
        losses = self.model(**data, mode='loss')
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        self.optimizer.step()

    def splat_only(self) -> Callable[[], None]:
        """Return a function that runs the splat of one step alone, forward and backward."""
        geometry = self.model.data_preprocessor(self.data, True)['inputs']['geometry']
        images, bins, rows, columns = geometry.inside.shape
        channels = self.model.view_transform.out_channels
        context = torch.rand(images, channels, rows, columns, requires_grad=True)
        depth = torch.rand(images, bins, rows, columns, requires_grad=True)
        grad = torch.rand(geometry.num_cells, channels)
        return lambda: splat(context, depth, geometry).backward(grad)
