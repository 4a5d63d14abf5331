"""mmseg's data preprocessor without synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmseg.models.data_preprocessor import SegDataPreProcessor

from mmtempo.device.prepared_batch import take_prepared

from .data_transfer import AsyncCast

MAPS = ('gt_sem_seg', 'gt_edge_map', 'gt_depth_map')
# Maps that may be packed, as uint8.
LABELS = MAPS[:2]
Padding = tuple[int, int, int, int]


@MODELS.register_module()
class SparseSegDataPreProcessor(AsyncCast, SegDataPreProcessor):
    """A `SegDataPreProcessor` with asynchronous copies, batched operations and equal results.

    Stock copies each tensor synchronously, and reverses the channels of each image by a list as
    index, which is one more synchronous copy. Here copies are asynchronous, and images of one
    shape are normalized and padded together.

    Example::

        model = dict(data_preprocessor=dict(type='SparseSegDataPreProcessor', ...))

    Args:
        args: Arguments of mmseg's `SegDataPreProcessor`.
        non_blocking: Whether copies are asynchronous. Defaults to True.
        kwargs: Arguments of mmseg's `SegDataPreProcessor`.
    """

    takes_stacked_inputs = True

    def __init__(self, *args: Any, non_blocking: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._non_blocking = non_blocking  # mmseg's class has no argument for it
        # The attribute's name differs between the stacks (onedl, openmmlab).
        self._reverses_channels = getattr(self, '_channel_conversion', None) or getattr(
            self, 'channel_conversion', False
        )

    def forward(self, data: dict, training: bool = False) -> dict[str, Any]:
        result = take_prepared(data, training) or self.prepare_ahead(data, training)
        if training and self.batch_augments is not None:
            batch, samples = self.batch_augments(result['inputs'], result['data_samples'])
            return dict(inputs=batch, data_samples=samples)
        return result

    def prepare_ahead(self, data: dict, training: bool) -> dict[str, Any]:
        """Prepare a batch before its step, on a side stream.

        Batch augments are left out: they draw random numbers, in the order of the steps.
        """
        originals, theirs = data.get('data_samples'), data['inputs']
        data = self.cast_data(data)
        images, samples = list(data['inputs']), data.get('data_samples')
        _check(images, samples)
        _unpack_labels(samples or ())
        reverse = self._reverses_channels and images[0].size(0) == 3
        if training:
            paddings = self._pad_for_training(images, samples, originals)
        else:
            paddings = self._pad_for_testing(images, samples)
        if len({image.shape for image in images}) == 1:
            stacked = data['inputs']
            if not isinstance(stacked, torch.Tensor):
                stacked = torch.stack(images)
            batch = self._prepare(stacked, paddings[0], reverse)
            batch = batch.clone() if batch is theirs else batch
        else:
            each = zip(images, paddings)
            batch = torch.stack([self._prepare(image, pad, reverse) for image, pad in each])
        return dict(inputs=batch, data_samples=samples)

    def _pad_for_training(
        self,
        images: Sequence[torch.Tensor],
        samples: Sequence[Any] | None,
        originals: Sequence[Any] | None,
    ) -> list[Padding]:
        """Pad the maps of the samples, and return how to pad the images."""
        if samples is None or originals is None:
            raise ValueError(
                "data_preprocessor: training needs 'data_samples' in the batch, found none; have "
                'the pipeline pack them (PackSegInputs)'
            )
        paddings = _paddings(images, self.size, self.size_divisor, 'data_preprocessor')
        for sample, original, image, padding in zip(samples, originals, images, paddings):
            pad_shape = None
            for name in MAPS:
                if name in sample:
                    field = getattr(sample, name)
                    values = field.data
                    del field.data  # PixelData refuses another shape than the present one
                    # If it was not copied, the memory belongs to the dataset.
                    theirs = getattr(original, name).data
                    copied = (values.device, values.dtype) != (theirs.device, theirs.dtype)
                    field.data = self._pad_map(values, padding, copied)
                    pad_shape = field.shape
            sample.set_metainfo(
                dict(img_shape=image.shape[-2:], pad_shape=pad_shape, padding_size=padding)
            )
        return paddings

    def _pad_for_testing(
        self, images: Sequence[torch.Tensor], samples: Sequence[Any] | None
    ) -> list[Padding]:
        """Set the padding in the metadata of the samples, and return it."""
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            raise ValueError(
                f'data_preprocessor: in testing the images of a batch must have one shape, found '
                f'{shapes}; set batch_size=1 in the dataloader, or resize them to one shape'
            )
        if not self.test_cfg:
            return [(0, 0, 0, 0)] * len(images)
        size, divisor = self.test_cfg.get('size'), self.test_cfg.get('size_divisor')
        paddings = _paddings(images, size, divisor, 'data_preprocessor.test_cfg')
        for sample, image, padding in zip(samples or (), images, paddings):
            _, right, _, bottom = padding
            height, width = image.shape[-2:]
            shape = torch.Size((height + bottom, width + right))
            sample.set_metainfo(dict(img_padding_size=padding, pad_shape=shape))
        return paddings

    def _prepare(self, images: torch.Tensor, padding: Padding, reverse: bool) -> torch.Tensor:
        """Reverse channels of, normalize and pad one image, or a batch of images."""
        if reverse:
            images = images.flip(-3)
        images = images.float()
        if self._enable_normalize:
            images = torch.sub(images, self.mean).div_(self.std)
        return F.pad(images, padding, value=self.pad_val) if any(padding) else images

    def _pad_map(self, values: torch.Tensor, padding: Padding, copied: bool) -> torch.Tensor:
        if any(padding):
            return F.pad(values, padding, value=self.seg_pad_val)
        return values if copied else values.clone()


def _check(images: Sequence[torch.Tensor], samples: Sequence[Any] | None) -> None:
    """Raise ValueError unless images and samples make a batch; `zip` would truncate silently."""
    odd = sorted({tuple(image.shape) for image in images if image.dim() != 3})
    if odd:
        raise ValueError(
            'data_preprocessor: an image must have 3 dimensions, (channels, height, width), found '
            f'{odd}'
        )
    if samples is not None and len(samples) != len(images):
        raise ValueError(
            f'data_preprocessor: the batch has {len(images)} images (inputs), but {len(samples)} '
            'data_samples'
        )


def _unpack_labels(samples: Sequence[Any]) -> None:
    """Convert labels that are packed as uint8 to int64."""
    stacked = getattr(samples, 'stacked', {})
    for name in LABELS:
        together = stacked[name].long() if _is_packed(stacked.get(name)) else None
        for index, sample in enumerate(samples):
            field = getattr(sample, name) if name in sample else None
            if field is not None and _is_packed(field.data):
                field.data = field.data.long() if together is None else together[index]


def _is_packed(values: torch.Tensor | None) -> bool:
    return values is not None and values.dtype == torch.uint8


def _paddings(
    images: Sequence[torch.Tensor],
    size: Sequence[int] | None,
    size_divisor: int | None,
    where: str,
) -> list[Padding]:
    """Return the padding of each image, which is at its right and bottom only."""
    if (size is None) == (size_divisor is None):
        raise ValueError(
            f'{where} needs either size or size_divisor, found size={size}, '
            f'size_divisor={size_divisor}'
        )
    if len({tuple(image.shape[:-2]) for image in images}) > 1:
        found = sorted(tuple(image.shape) for image in images)
        raise ValueError(
            f'{where}: the images of a batch must have the same number of channels, found {found}'
        )
    if size is None:
        divisor = max(size_divisor or 1, 1)
        height, width = (
            -(-max(image.shape[dim] for image in images) // divisor) * divisor for dim in (-2, -1)
        )
    else:
        height, width = size[-2], size[-1]
    return [
        (0, max(width - image.shape[-1], 0), 0, max(height - image.shape[-2], 0))
        for image in images
    ]
