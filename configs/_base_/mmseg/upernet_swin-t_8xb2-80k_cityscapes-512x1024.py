# UPerNet-Swin-T on Cityscapes with stock parts; mmseg has no such config. Optimizer and warm-up are
# those of its ADE20K config; 80k iterations of 16 samples equal the 160k of 8 of its SegFormer.
_base_ = [
    __import__('mmtempo.cli.config').cli.config.resolve_config_path(f'mmseg::_base_/{part}')
    for part in (
        'models/upernet_swin',
        'datasets/cityscapes',
        'schedules/schedule_80k',
        'default_runtime',
    )
]
checkpoint = 'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth'
data_preprocessor = dict(size=(512, 1024))
model = dict(
    data_preprocessor=data_preprocessor,
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
        }
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, begin=1500, end=80000, by_epoch=False),
]
