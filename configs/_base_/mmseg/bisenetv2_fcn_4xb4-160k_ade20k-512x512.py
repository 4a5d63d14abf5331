# BiSeNetV2 on ADE20K with stock parts; mmseg has no such config. Batch, optimizer and schedule are
# those of its Cityscapes config.
_base_ = [
    __import__('mmtempo.cli.config').cli.config.resolve_config_path(f'mmseg::_base_/{part}')
    for part in (
        'models/bisenetv2',
        'datasets/ade20k',
        'schedules/schedule_160k',
        'default_runtime',
    )
]
data_preprocessor = dict(size=(512, 512))
model = dict(
    data_preprocessor=data_preprocessor,
    decode_head=dict(num_classes=150),
    auxiliary_head=[dict(head, num_classes=150) for head in _base_.model.auxiliary_head],
)
optim_wrapper = dict(optimizer=dict(lr=0.05))
param_scheduler = [
    dict(type='LinearLR', by_epoch=False, start_factor=0.1, begin=0, end=1000),
    dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=1000, end=160000, by_epoch=False),
]
