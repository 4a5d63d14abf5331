# python tools/train.py configs/lss_multicam/lss_multicam-r18_1xb4-200k_synthetic-multicam.py
_base_ = [
    '../_base_/models/lss_multicam-r18.py',
    '../_base_/datasets/synthetic_multicam.py',
    '../_base_/schedules/schedule_200k.py',
    '../_base_/default_runtime.py',
]
