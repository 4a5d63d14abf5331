"""Image loading that decodes JPEGs at a fraction of their size."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.registry import TRANSFORMS

from mmtempo.datasets.images.decode import check_reduce_to, decode_reduced
from mmtempo.datasets.images.read import FLAGS, decode_as_stock, get_content

REDUCIBLE = ['color', 'color_ignore_orientation']


@TRANSFORMS.register_module()
class FastLoadImageFromFile(LoadImageFromFile):
    """A `LoadImageFromFile` of mmcv that can decode JPEGs at a fraction of their size.

    With `reduce_to`, a JPEG at least twice as large is decoded at 1/2, 1/4 or 1/8 of its size, in
    less time. `ori_shape` stays that of the file. A later `Resize` returns images and labels of
    the same sizes as after a full decode, with `scale_factor` relative to the decoded image. It is
    for pipelines of images and segmentation maps only: boxes would be scaled by that factor.

    The images are close to those of a full decode that is averaged (`cv2.INTER_AREA`): the mean
    difference is below 0.3 levels (50 dB), or 3 levels (36 dB) where colours change from pixel to
    pixel, which JPEG itself stores at half the size. Bilinear `Resize` of a full decode to less
    than half differs more, as it samples single pixels and skips others.

    A file that is missing, truncated or no image raises a `BadSampleError` that names it.

    Example::

        train_pipeline = [dict(type='FastLoadImageFromFile', reduce_to=(1024, 512)), ...]

    Args:
        args: Positional arguments of mmcv's `LoadImageFromFile`.
        reduce_to: The minimum width and height that the pipeline needs, such as the largest scale
            of `RandomResize`; None decodes in full. Defaults to None.
        kwargs: Keyword arguments of mmcv's `LoadImageFromFile`.
    """

    def __init__(self, *args: Any, reduce_to: tuple[int, int] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reduce_to = check_reduce_to(reduce_to, type(self).__name__)
        if reduce_to is not None and (
            self.imdecode_backend != 'cv2' or self.color_type not in REDUCIBLE
        ):
            raise ValueError(
                f"{type(self).__name__}.reduce_to needs imdecode_backend='cv2' and a color_type of "
                f'{REDUCIBLE}, found {self.imdecode_backend!r} and {self.color_type!r}; remove '
                'reduce_to, or change the other two'
            )

    def transform(self, results: dict) -> dict | None:
        path = results['img_path']
        try:
            image, factor = self._load(path)
        except Exception:
            if self.ignore_empty:
                return None
            raise
        height, width = image.shape[:2]
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = height, width
        results['ori_shape'] = height * factor, width * factor
        return results

    def _load(self, path: str) -> tuple[np.ndarray, int]:
        content = get_content(path, self.backend_args, 'image', self.file_client_args)
        if self.reduce_to is not None:
            return decode_reduced(content, FLAGS[self.color_type], self.reduce_to, path, 'image')
        return decode_as_stock(content, self.color_type, self.imdecode_backend, path, 'image'), 1
