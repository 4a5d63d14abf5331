"""mmseg's IoU from a running sum, with memory independent of the number of images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.registry import METRICS
from mmseg.evaluation.metrics import IoUMetric


@METRICS.register_module()
class StreamingIoUMetric(IoUMetric):
    """An `IoUMetric` of constant memory, which synchronizes only at the end of an evaluation.

    Stock keeps four tensors an image, copies each to the host immediately, and gathers all of
    them from all processes. This metric keeps their sum on the device, and separately the
    tensors of the last image.

    Example::

        val_evaluator = dict(type='StreamingIoUMetric', iou_metrics=['mIoU'])

    Keys and files are those of `IoUMetric`. Values are equal bit for bit as long as no sum of
    pixels exceeds 2**24 (8 images of Cityscapes): stock sums in float32, which rounds beyond
    that. Here sums are int64, which are exact.

    A sampler may repeat images so that all processes get the same number. These surplus images
    at the end are excluded, as in stock.

    Args:
        args: Arguments of `IoUMetric`.
        kwargs: Keyword arguments of `IoUMetric`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._size = self._count = 0
        self._sum: torch.Tensor | None = None
        self._last: torch.Tensor | None = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count the pixels of each sample, without synchronization."""
        super().process(data_batch, data_samples)
        for areas in self.results:
            if self._last is not None:
                self._sum = self._last if self._sum is None else self._sum + self._last
            self._last = torch.stack(areas)
            self._count += 1
        self.results.clear()

    def evaluate(self, size: int) -> dict:
        # One item a process, and none without images: stock warns of that.
        if self._last is not None:
            total = torch.zeros_like(self._last) if self._sum is None else self._sum
            self.results.append((self._count, total.cpu(), self._last.cpu()))
        elif get_world_size() > 1 and not self.format_only:
            self.results.append((0, None, None))  # gathered items alternate between processes
        self._size = size
        self._reset()
        # Stock drops items beyond `size`, but here an item is not an image.
        return super().evaluate(max(size, get_world_size()))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Compute the metrics.

        Args:
            results: An item for each process: its number of images, their sum without the last
                image, and the last image.
        """
        parts = [part for part in results if part[0]]
        padding = self._padding([count for count, _, _ in parts])
        return super().compute_metrics(
            [rest if i in padding else rest + last for i, (_, rest, last) in enumerate(parts)]
        )

    def _reset(self) -> None:
        self._count, self._sum, self._last = 0, None, None

    def _padding(self, counts: list[int]) -> set[int]:
        """Return the indices of the parts whose last image is a surplus one.

        A sampler deals images out to processes in turn, so surplus images are the last turns.
        """
        excess = max(0, sum(counts) - self._size)
        turns = [(turn, i) for i, n in enumerate(counts) for turn in range(max(0, n - excess), n)]
        padding = {i for _, i in sorted(turns, reverse=True)[:excess]}
        if len(padding) < excess:
            print_log(
                f'StreamingIoUMetric: {sum(counts)} images were evaluated, but the dataset has '
                f'{self._size}; {excess - len(padding)} surplus images are counted, because only '
                'the last image of each process can be excluded',
                logger='current',
                level=logging.WARNING,
            )
        return padding

    @staticmethod
    def intersect_and_union(
        pred_label: torch.Tensor, label: torch.Tensor, num_classes: int, ignore_index: int
    ) -> tuple[torch.Tensor, ...]:
        """Count pixels by class as stock does, but as integers on the device.

        Stock removes ignored pixels by a mask, so the host has to wait for the size of the
        result. Here ignored pixels are counted in no bin.

        Args:
            pred_label: Predicted classes, (H, W).
            label: True classes, (H, W).
            num_classes: Number of classes.
            ignore_index: Class that is not counted.

        Returns:
            Numbers of pixels by class: of the intersection, of the union, predicted, and true.
        """
        valid = label != ignore_index

        def count(classes: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
            # Classes are centers of bins; `bincount` would synchronize to know the largest class.
            values = torch.where(where, classes.float(), -1.0)
            return values.histc(num_classes, -0.5, num_classes - 0.5).long()

        intersect = count(label, valid & (pred_label == label))
        predicted, true = count(pred_label, valid), count(label, valid)
        return intersect, predicted + true - intersect, predicted, true
