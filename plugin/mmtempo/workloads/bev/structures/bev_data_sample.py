"""What the pipeline and the model say about one sample."""

from mmengine.structures import BaseDataElement


class BEVDataSample(BaseDataElement):
    """One sample's label, prediction and meta information.

    Fields, all optional:
        - ``gt_bev``: packed label, int16 (rows, columns), on the host.
        - ``gt_occupancy``, ``gt_valid``: the label unpacked, on the device.
        - ``pred_logits``: (classes, rows, columns), on the device.

    Meta information: ``token``, ``img_path``, ``bev_path``, ``calibration``; path and
    calibration are lists where a sample has several cameras.
    """
