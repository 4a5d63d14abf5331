# Lift-Splat from six cameras onto a grid around the vehicle, one class: vehicles.
model = dict(
    type='BEVSegmentor',
    data_preprocessor=dict(type='BEVDataPreprocessor', num_classes=1),
    backbone=dict(
        type='ResNetV1c',
        depth=18,
        num_stages=3,  # ends at stride 16: 8 x 22 feature pixels of a 128 x 352 image
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2,),
        norm_cfg=dict(type='BN'),
        init_cfg=dict(type='Pretrained', checkpoint='open-mmlab://resnet18_v1c'),
    ),
    view_transform=dict(
        type='LiftSplatShoot',
        in_channels=256,
        out_channels=64,
        stride=16,
        depth=(4.0, 45.0, 1.0),  # 41 bins, independent of the rows: this grid extends to the rear as well
        grid=dict(x=(-50.0, 50.0, 0.5), z=(-50.0, 50.0, 0.5), y=(-10.0, 10.0)),
    ),
    decode_head=dict(
        type='BEVPyramidHead',
        in_channels=64,
        channels=128,
        num_blocks=(4,),  # labels have the resolution of the grid
        priors=(0.033,),  # share of valid cells with a vehicle in the synthetic set
    ),
)
