"""Intersection over union of BEV segmentation, in every convention in use."""

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
    """IoU per class and its means, over valid cells only.

    ============  =====================================================================
    key           meaning
    ============  =====================================================================
    mIoU          mean over the classes that occur in the data set
    mIoU_all      mean over all classes; one that neither occurs nor is predicted is left
                  out, one that is predicted without occurring counts 0
    mIoU_image    IoU of each class and image, averaged over the images where it has
                  one, then over classes
    mIoU_always   the `mIoU` of answering yes everywhere: what knowing nothing scores
    absent        how many classes do not occur
    IoU.<class>   of one class, NaN if it neither occurs nor is predicted
    ============  =====================================================================

    Counts stay on the device until the evaluation ends; each image adds a few hundred bytes.

    Args:
        threshold: Probability above which a cell counts as occupied. Defaults to 0.5.
        classes: Names of the classes, in bit order. Defaults to None: those of the data set.
        collect_device: As for mmengine's `BaseMetric`. Defaults to 'cpu'.
        prefix: Put before every key. Defaults to None.
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
            raise ValueError(f'BEVIoUMetric.threshold must lie in (0, 1), found {threshold}')
        self.results: list[torch.Tensor] = []
        self.classes = None if classes is None else tuple(classes)
        self.logit_threshold = math.log(threshold / (1 - threshold))

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count hits of each sample; nothing here waits for the device."""
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
        # One copy for the whole set. Cloned: ranks exchange pickles, and a view pickles it all.
        if self.results:
            self.results = [counts.clone() for counts in torch.stack(self.results).cpu()]
        return super().evaluate(size)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Metrics of the counts (4, classes) of all images; logs the table."""
        counts = torch.stack(results).double().numpy()
        classes = self._names(counts.shape[-1])
        # A class without positives and predictions has no IoU: NaN is the answer.
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
        """The classes' names, as many as the model predicts."""
        classes = self.classes or tuple((self.dataset_meta or {}).get('classes', CLASSES))
        if len(classes) != predicted:
            raise ValueError(
                f'the model predicts {predicted} classes, the data set names {len(classes)}: '
                f'{", ".join(classes)}; set metainfo=dict(classes=...) of the data set, or '
                'classes=... of BEVIoUMetric'
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
        """Percentages by class; `always` is the IoU of answering yes everywhere."""
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
    """Mean of what is a number; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float('nan')


def _percent(value: float) -> str:
    return '-' if math.isnan(value) else f'{100 * value:.2f}'
