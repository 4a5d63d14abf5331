# python tools/train.py configs/upernet_swin/upernet_swin-t_8xb2-80k_cityscapes-512x1024.py
_base_ = [
    '../_base_/mmseg/upernet_swin-t_8xb2-80k_cityscapes-512x1024.py',
    '../_base_/mmseg_parts.py',
]
data_preprocessor = _base_.parts.preprocessor
model = dict(
    data_preprocessor=data_preprocessor,
    decode_head=dict(type='SparseAccuracyHead', head='UPerHead'),
    auxiliary_head=dict(type='SparseAccuracyHead', head='FCNHead'),
)
default_hooks, optim_wrapper = _base_.parts.hooks, _base_.parts.wrapper
train_cfg, val_cfg, test_cfg = _base_.parts.loops
val_evaluator = test_evaluator = _base_.parts.metric
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 GPUs x 2
