# python tools/train.py configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py
_base_ = [
    '../_base_/models/lss_swin-t.py',
    '../_base_/datasets/nuscenes_bev.py',
    '../_base_/schedules/schedule_200k.py',
    '../_base_/default_runtime.py',
]
