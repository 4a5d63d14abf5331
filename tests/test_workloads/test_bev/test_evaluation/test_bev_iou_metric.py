"""IoU in all conventions equals that of sets counted by hand."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.evaluation.bev_iou_metric import BEVIoUMetric

CLASSES = ('road', 'car', 'ghost', 'never')


def sample(predicted: dict, truth: dict, ignored: set = frozenset()) -> dict:
    """Return a sample of 2 x 4 cells, given by sets of cell numbers for each class."""
    logits = torch.full((4, 8), -3.0)
    occupancy = torch.zeros(4, 8, dtype=torch.bool)
    valid = torch.ones(8, dtype=torch.bool)
    for i, name in enumerate(CLASSES):
        logits[i, list(predicted.get(name, ()))] = 3.0
        occupancy[i, list(truth.get(name, ()))] = True
    valid[list(ignored)] = False
    return dict(
        pred_logits=logits.view(4, 2, 4),
        gt_occupancy=occupancy.view(4, 2, 4),
        gt_valid=valid.view(2, 4),
    )


IMAGES = [
    # road: IoU 3 / 5; car: IoU 0 / 2; cell 7 is ignored, so that its prediction does not count
    sample({'road': {0, 1, 2, 7}, 'car': {4}}, {'road': {0, 1, 2, 3, 4, 7}, 'car': {5}}, {7}),
    # road: IoU 1 / 1; ghost is predicted and never occurs
    sample({'road': {0}, 'ghost': {3}}, {'road': {0}}),
]


def evaluate(images: list = IMAGES, **kwargs: object) -> dict:
    metric = BEVIoUMetric(classes=CLASSES, **kwargs)
    metric.process(None, images)
    return metric.evaluate(len(images))


def test_all_conventions_equal_counts_by_hand() -> None:
    metrics = evaluate()
    assert metrics['IoU.road'] == pytest.approx(4 / 6)
    assert metrics['IoU.car'] == 0
    assert metrics['IoU.ghost'] == 0
    assert math.isnan(metrics['IoU.never'])
    assert metrics['mIoU'] == pytest.approx((4 / 6 + 0) / 2)
    assert metrics['mIoU_all'] == pytest.approx((4 / 6 + 0 + 0) / 3)
    assert metrics['mIoU_image'] == pytest.approx(((3 / 5 + 1) / 2 + 0 + 0) / 3)
    assert metrics['mIoU_always'] == pytest.approx((6 / 15 + 1 / 15) / 2)
    assert metrics['absent'] == 2


def test_result_does_not_depend_on_batches() -> None:
    one_by_one = BEVIoUMetric(classes=CLASSES)
    for image in IMAGES:
        one_by_one.process(None, [image])
    assert one_by_one.evaluate(2)['mIoU'] == evaluate()['mIoU']


def test_padding_samples_of_a_distributed_sampler_do_not_count() -> None:
    metric = BEVIoUMetric(classes=CLASSES)
    metric.process(None, [*IMAGES, IMAGES[0]])
    assert metric.evaluate(2)['mIoU'] == evaluate()['mIoU']


def test_pickles_that_ranks_exchange_contain_no_shared_storage() -> None:
    metric = BEVIoUMetric(classes=CLASSES)
    metric.process(None, IMAGES * 50)
    metric.evaluate(100)
    metric.process(None, IMAGES * 50)
    sizes: list = []
    metric.compute_metrics = lambda results: sizes.append(len(pickle.dumps(results))) or {}
    metric.evaluate(100)
    assert sizes[0] < 100 * 1000  # views would pickle the storage of all images for each image


def test_metric_without_valid_cells_is_nan() -> None:
    metrics = evaluate([sample({'road': {1}}, {'road': {1}}, set(range(8)))])
    assert math.isnan(metrics['mIoU'])
    assert metrics['absent'] == 4


def test_threshold_is_a_probability() -> None:
    images = [sample({}, {'road': {0}})]
    images[0]['pred_logits'][0, 0, 0] = 1.0  # probability 0.73
    assert evaluate(images)['IoU.road'] == 1
    assert evaluate(images, threshold=0.8)['IoU.road'] == 0
    with pytest.raises(ValueError, match='threshold must be in'):
        BEVIoUMetric(threshold=1.0)


def test_process_has_no_synchronization() -> None:
    metric = BEVIoUMetric(classes=CLASSES)
    with SyncCensus() as counter:
        metric.process(None, IMAGES)
    assert counter.waits == []


def test_class_names_default_to_those_of_the_data_set() -> None:
    sample = dict(
        pred_logits=torch.ones(1, 4, 4),
        gt_occupancy=torch.ones(1, 4, 4, dtype=torch.bool),
        gt_valid=torch.ones(4, 4, dtype=torch.bool),
    )
    metric = BEVIoUMetric()
    metric.dataset_meta = dict(classes=('vehicle',))
    metric.process({}, [sample])
    assert metric.evaluate(1)['IoU.vehicle'] == 1
    metric.dataset_meta = None
    metric.process({}, [sample])
    with pytest.raises(ValueError, match='predicts 1 classes, but the data set names 14: drivable'):
        metric.evaluate(1)
