# make train, or: python tools/train.py configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py
_base_ = [
    '../_base_/models/lss_swin-mini.py',
    '../_base_/datasets/synthetic_bev.py',
    '../_base_/schedules/schedule_300.py',
    '../_base_/default_runtime.py',
]
default_hooks = dict(checkpoint=dict(interval=100), logger=dict(interval=10))
randomness = dict(seed=0)  # reproducible
