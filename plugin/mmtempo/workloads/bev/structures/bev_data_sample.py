"""The label, the prediction and the meta information of a sample."""

from mmengine.structures import BaseDataElement


class BEVDataSample(BaseDataElement):
    """A sample of BEV segmentation.

    Fields, all optional:
        - ``gt_bev``: packed label, int16 (rows, columns), on the host.
        - ``gt_occupancy``: unpacked label, bool (classes, rows, columns), on the device.
        - ``gt_valid``: cells that are not ignored, bool (rows, columns), on the device.
        - ``pred_logits``: logits, float (classes, rows, columns), on the device.

    Meta information: ``token``, ``img_path``, ``bev_path``, ``calibration``. ``img_path`` and
    ``calibration`` are lists where a sample has several cameras.
    """
