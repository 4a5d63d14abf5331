"""mmseg's preprocessor without waits for the device."""

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
# Those that may come packed, as bytes.
LABELS = MAPS[:2]
Padding = tuple[int, int, int, int]


@MODELS.register_module()
class SparseSegDataPreProcessor(AsyncCast, SegDataPreProcessor):
    """Brings a batch to the device and prepares it there, as a whole; results are stock's.

    Stock copies one tensor after the other and waits for each, and reverses the channels of
    each image with a list as index, which is one more copy to wait for. Here copies are
    asynchronous, and images of one shape are normalised and padded together.

    Example::

        model = dict(data_preprocessor=dict(type='SparseSegDataPreProcessor', ...))

    Args:
        args: Those of mmseg's `SegDataPreProcessor`.
        non_blocking: Whether copies may overlap with the device's work. Defaults to True.
        kwargs: Those of mmseg's `SegDataPreProcessor`.
    """

    takes_stacked_inputs = True

    def __init__(self, *args: Any, non_blocking: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Stock has no argument for it.
        self._non_blocking = non_blocking
        # The attribute has another name in each of the stacks.
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
        """All but the batch augments, which draw random numbers in the order of the steps."""
        originals, theirs = data.get('data_samples'), data['inputs']
        data = self.cast_data(data)
        images, samples = list(data['inputs']), data.get('data_samples')
        _check(images, samples)
        _unpack_labels(samples or ())
        reverse = self._reverses_channels and images[0].size(0) == 3
        if training:
            paddings = self._place_in_training(images, samples, originals)
        else:
            paddings = self._place_in_testing(images, samples)
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

    def _place_in_training(
        self,
        images: Sequence[torch.Tensor],
        samples: Sequence[Any] | None,
        originals: Sequence[Any] | None,
    ) -> list[Padding]:
        """How to pad the images; the samples are padded already."""
        if samples is None or originals is None:
            raise ValueError("the batch has no 'data_samples', which training needs")
        paddings = _paddings(images, self.size, self.size_divisor, 'data_preprocessor')
        for sample, original, image, padding in zip(samples, originals, images, paddings):
            pad_shape = None
            for name in MAPS:
                if name in sample:
                    field = getattr(sample, name)
                    values = field.data
                    del field.data  # it may not change its shape while it is there
                    # Where it was there already, it is the data set's own.
                    theirs = getattr(original, name).data
                    copied = (values.device, values.dtype) != (theirs.device, theirs.dtype)
                    field.data = self._pad_map(values, padding, copied)
                    pad_shape = field.shape
            sample.set_metainfo(
                dict(img_shape=image.shape[-2:], pad_shape=pad_shape, padding_size=padding)
            )
        return paddings

    def _place_in_testing(
        self, images: Sequence[torch.Tensor], samples: Sequence[Any] | None
    ) -> list[Padding]:
        """How to pad the images, which the samples know."""
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1:
            raise ValueError(
                f'in testing the images of a batch must have one shape, found {shapes}; '
                'set the batch_size of the dataloader to 1, or resize them to one shape'
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
        """One image, or a batch of them."""
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
    """Whether it is a batch; `zip` would drop what is over."""
    odd = sorted({tuple(image.shape) for image in images if image.dim() != 3})
    if odd:
        raise ValueError(f'an image must have 3 dimensions, (channels, height, width), found {odd}')
    if samples is not None and len(samples) != len(images):
        raise ValueError(
            f'the batch has {len(images)} images (inputs), but {len(samples)} data_samples'
        )


def _unpack_labels(samples: Sequence[Any]) -> None:
    """Make int64 of labels that came as bytes."""
    stacked = getattr(samples, 'stacked', {})
    for name in LABELS:
        together = stacked[name].long() if _is_packed(stacked.get(name)) else None
        for place, sample in enumerate(samples):
            field = getattr(sample, name) if name in sample else None
            if field is not None and _is_packed(field.data):
                field.data = field.data.long() if together is None else together[place]


def _is_packed(values: torch.Tensor | None) -> bool:
    return values is not None and values.dtype == torch.uint8


def _paddings(
    images: Sequence[torch.Tensor],
    size: Sequence[int] | None,
    size_divisor: int | None,
    where: str,
) -> list[Padding]:
    """What each image lacks to the right and below (left and top: 0)."""
    if (size is None) == (size_divisor is None):
        raise ValueError(
            f'{where} needs either size or size_divisor, found size={size}, '
            f'size_divisor={size_divisor}'
        )
    if len({tuple(image.shape[:-2]) for image in images}) > 1:
        found = sorted(tuple(image.shape) for image in images)
        raise ValueError(f'the images of a batch differ in their channels: {found}')
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
