# python tools/train.py configs/bisenetv2/bisenetv2_fcn_4xb4-160k_ade20k-512x512.py
_base_ = [
    '../_base_/mmseg/bisenetv2_fcn_4xb4-160k_ade20k-512x512.py',
    '../_base_/mmseg_parts.py',
]
data_preprocessor = _base_.parts.preprocessor
model = dict(
    data_preprocessor=data_preprocessor,
    decode_head=_base_.parts.fcn_head,
    auxiliary_head=[dict(one, **_base_.parts.fcn_head) for one in _base_.model.auxiliary_head],
)
default_hooks, optim_wrapper = _base_.parts.hooks, _base_.parts.wrapper
train_cfg, val_cfg, test_cfg = _base_.parts.loops
val_evaluator = test_evaluator = _base_.parts.metric
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 4 GPUs x 4
