"""mmseg's IoU from one running sum, however many images there are."""

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
    """`IoUMetric` whose memory does not grow with the data set, and that waits at its end only.

    Stock keeps four tensors an image, brings each to the host as soon as it is made, and hands
    all of them from process to process. This keeps their sum on the device, and what the last
    image adds to it.

    Example::

        val_evaluator = dict(type='StreamingIoUMetric', iou_metrics=['mIoU'])

    Keys and files are those of `IoUMetric`. Values are too, bit by bit, as long as no sum of
    pixels exceeds 2**24 (8 images of Cityscapes): stock sums in float32, which rounds beyond
    that. Here sums are whole numbers of 64 bits, which round nothing.

    Where processes have had more images than the data set has, since a sampler gives each of
    them as many, those at the end are left out, as stock leaves them out.

    Args:
        args: Those of `IoUMetric`.
        kwargs: Likewise.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._size = self._count = 0
        self._sum: torch.Tensor | None = None
        self._last: torch.Tensor | None = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count the pixels of each sample; nothing here waits for the device."""
        super().process(data_batch, data_samples)
        for areas in self.results:
            if self._last is not None:
                self._sum = self._last if self._sum is None else self._sum + self._last
            self._last = torch.stack(areas)
            self._count += 1
        self.results.clear()

    def evaluate(self, size: int) -> dict:
        # One item a process; stock warns where there is none at all.
        if self._last is not None:
            total = torch.zeros_like(self._last) if self._sum is None else self._sum
            self.results.append((self._count, total.cpu(), self._last.cpu()))
        elif get_world_size() > 1 and not self.format_only:
            self.results.append((0, None, None))  # items are taken in turn, one of each
        self._size = size
        self._reset()
        # Stock leaves items out beyond `size`, but these are no images.
        return super().evaluate(max(size, get_world_size()))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics of the sums (images, sum without the last, last) of all processes."""
        parts = [part for part in results if part[0]]
        padding = self._padding([count for count, _, _ in parts])
        return super().compute_metrics(
            [rest if i in padding else rest + last for i, (_, rest, last) in enumerate(parts)]
        )

    def _reset(self) -> None:
        self._count, self._sum, self._last = 0, None, None

    def _padding(self, counts: list[int]) -> set[int]:
        """Parts whose last image is one too many; processes had them in turn."""
        excess = max(0, sum(counts) - self._size)
        turns = [(turn, i) for i, n in enumerate(counts) for turn in range(max(0, n - excess), n)]
        padding = {i for _, i in sorted(turns, reverse=True)[:excess]}
        if len(padding) < excess:
            print_log(
                f'StreamingIoUMetric: {sum(counts)} images were evaluated, the data set has '
                f'{self._size}; {excess - len(padding)} too many are counted, since only the last '
                'one of each process can be left out',
                logger='current',
                level=logging.WARNING,
            )
        return padding

    @staticmethod
    def intersect_and_union(
        pred_label: torch.Tensor, label: torch.Tensor, num_classes: int, ignore_index: int
    ) -> tuple[torch.Tensor, ...]:
        """Pixels by class, as stock has them, but whole numbers, and on the device.

        Stock takes ignored pixels out by a mask. How many are left, the host has to know before
        it can go on; here they go into no bin.

        Args:
            pred_label: Predicted classes, (H, W).
            label: True classes, (H, W).
            num_classes: How many there are.
            ignore_index: The class that does not count.

        Returns:
            Those of the intersection, of the union, predicted ones and true ones.
        """
        valid = label != ignore_index

        def count(classes: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
            # Classes in the middles of bins: a bincount would wait to know the largest.
            values = torch.where(where, classes.float(), -1.0)
            return values.histc(num_classes, -0.5, num_classes - 0.5).long()

        intersect = count(label, valid & (pred_label == label))
        predicted, true = count(pred_label, valid), count(label, valid)
        return intersect, predicted + true - intersect, predicted, true
