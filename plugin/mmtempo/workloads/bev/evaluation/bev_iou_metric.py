"""Intersection over union of BEV segmentation, in all common conventions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.logging import MMLogger, print_log
from mmengine.registry import METRICS
from prettytable import PrettyTable

from mmtempo.workloads.bev.structures.labels import CLASSES


@METRICS.register_module()
class BEVIoUMetric(BaseMetric):
    """IoU of each class and mean IoUs, over valid cells only.

    ============  =====================================================================
    key           meaning
    ============  =====================================================================
    mIoU          mean over the classes that occur in the data set
    mIoU_all      mean over all classes; a class that does not occur counts 0 if it is
                  predicted, and is left out otherwise
    mIoU_image    IoU of each class and image, averaged over the images where it is
                  defined, then over classes
    mIoU_always   `mIoU` of predicting every class everywhere, as a baseline
    absent        number of classes that do not occur
    IoU.<class>   IoU of a class; NaN if it neither occurs nor is predicted
    ============  =====================================================================

    Counts stay on the device until the evaluation ends; each image adds a few hundred bytes.

    Args:
        threshold: Probability above which a cell counts as occupied. Defaults to 0.5.
        classes: Names of the classes, in bit order. Defaults to None: those of the data set.
        collect_device: As for mmengine's `BaseMetric`. Defaults to 'cpu'.
        prefix: Prefix of all keys. Defaults to None.
        collect_dir: As for mmengine's `BaseMetric`. Defaults to None.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        classes: Sequence[str] | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device, prefix, collect_dir)
        if not 0 < threshold < 1:
            raise ValueError(f'BEVIoUMetric.threshold must be in (0, 1), found {threshold}')
        self.results: list[torch.Tensor] = []
        self.classes = None if classes is None else tuple(classes)
        self.logit_threshold = math.log(threshold / (1 - threshold))

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count hits and errors of each sample, without a synchronization."""
        for sample in data_samples:
            truth, valid = sample['gt_occupancy'], sample['gt_valid']
            predicted = (sample['pred_logits'] > self.logit_threshold) & valid
            truth = truth & valid
            hits = (predicted & truth).sum((-2, -1))
            counts = (
                hits,
                predicted.sum((-2, -1)) - hits,
                truth.sum((-2, -1)) - hits,
                valid.sum().expand_as(hits),
            )
            self.results.append(torch.stack(counts))

    def evaluate(self, size: int) -> dict:
        # One copy to the host for all samples. Cloned, since ranks exchange pickles, and the
        # pickle of a view contains the whole storage.
        if self.results:
            self.results = [counts.clone() for counts in torch.stack(self.results).cpu()]
        return super().evaluate(size)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Compute the metrics from the counts (4, classes) of all images, and log a table."""
        counts = torch.stack(results).double().numpy()
        classes = self._names(counts.shape[-1])
        # The IoU of a class without positives and predictions is 0 / 0: NaN is intended.
        with np.errstate(invalid='ignore', divide='ignore'):
            per_image = counts[:, 0] / counts[:, :3].sum(1)
            hits, wrong, missed, valid = counts.sum(0)
            iou = hits / (hits + wrong + missed)
            share = (hits + missed) / valid
        occurs = hits + missed > 0
        image_iou = np.array([_nanmean(column) for column in per_image.T])
        metrics = dict(
            mIoU=_nanmean(iou[occurs]),
            mIoU_all=_nanmean(iou),
            mIoU_image=_nanmean(image_iou),
            mIoU_always=_nanmean(share[occurs]),
            absent=float((~occurs).sum()),
        )
        self._log_table(classes, iou, image_iou, share, metrics)
        metrics.update({f'IoU.{name}': float(v) for name, v in zip(classes, iou)})
        return metrics

    def _names(self, predicted: int) -> tuple[str, ...]:
        """Return the names of the classes; check that the model predicts as many."""
        classes = self.classes or tuple((self.dataset_meta or {}).get('classes', CLASSES))
        if len(classes) != predicted:
            raise ValueError(
                f'BEVIoUMetric: the model predicts {predicted} classes, but the data set names '
                f'{len(classes)}: {", ".join(classes)}; set metainfo=dict(classes=...) of the '
                'data set, or classes=... of BEVIoUMetric'
            )
        return classes

    @staticmethod
    def _log_table(
        classes: Sequence[str],
        iou: np.ndarray,
        image_iou: np.ndarray,
        share: np.ndarray,
        metrics: dict,
    ) -> None:
        """Log percentages by class; `always` is the IoU of predicting the class everywhere."""
        table = PrettyTable(['class', 'IoU', 'IoU per image', 'always'])
        table.align = 'r'
        table.align['class'] = 'l'
        for row in zip(classes, iou, image_iou, share):
            table.add_row([row[0], *map(_percent, row[1:])])
        table.add_row(['-' * 8] + ['-' * 5] * 3)
        for name, key in (('mean, occurring', 'mIoU'), ('mean, all', 'mIoU_all')):
            image = _percent(metrics['mIoU_image']) if key == 'mIoU_all' else ''
            always = _percent(metrics['mIoU_always']) if key == 'mIoU' else ''
            table.add_row([name, _percent(metrics[key]), image, always])
        logger = MMLogger.get_current_instance()
        absent = int(metrics['absent'])
        print_log(
            f'BEV segmentation, % ({absent} of {len(classes)} classes absent):\n'
            + table.get_string(),
            logger,
        )


def _nanmean(values: np.ndarray) -> float:
    """Return the mean of all values but NaN; NaN where there are none."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if numbers.size else float('nan')


def _percent(value: float) -> str:
    return '-' if math.isnan(value) else f'{100 * value:.2f}'
