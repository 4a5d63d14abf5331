# python tools/train.py configs/segformer/segformer_mit-b0_8xb1-160k_cityscapes-1024x1024.py
_base_ = [
    '../_base_/mmseg/segformer_mit-b0_8xb1-160k_cityscapes-1024x1024.py',
    '../_base_/mmseg_parts.py',
]
data_preprocessor = _base_.parts.preprocessor
model = dict(
    data_preprocessor=data_preprocessor,
    decode_head=dict(type='SparseAccuracyHead', head='SegformerHead'),
)
default_hooks, optim_wrapper = _base_.parts.hooks, _base_.parts.wrapper
train_cfg, val_cfg, test_cfg = _base_.parts.loops
val_evaluator = test_evaluator = _base_.parts.metric
auto_scale_lr = dict(enable=False, base_batch_size=8)  # 8 GPUs x 1
