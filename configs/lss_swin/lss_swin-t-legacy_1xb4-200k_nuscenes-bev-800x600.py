# python tools/train.py configs/lss_swin/lss_swin-t-legacy_1xb4-200k_nuscenes-bev-800x600.py
# Geometry, calibration and loss of the former code, to compare with its results.
_base_ = ['./lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py']
model = dict(legacy=True)
