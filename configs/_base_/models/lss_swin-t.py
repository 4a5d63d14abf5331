# Lift-Splat on the last stage of Swin-T: 768 channels at stride 32.
swin_checkpoint = 'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth'
model = dict(
    type='BEVSegmentor',
    data_preprocessor=dict(type='BEVDataPreprocessor'),
    backbone=dict(
        type='SwinTransformer',
        embed_dims=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=7,
        drop_path_rate=0.3,
        out_indices=(3,),
        init_cfg=dict(type='Pretrained', checkpoint=swin_checkpoint),
    ),
    view_transform=dict(
        type='LiftSplatShoot',
        in_channels=768,
        out_channels=64,
        stride=32,
        # The depth bins are the rows of this grid.
        grid=dict(x=(-25.0, 25.0, 0.5), z=(1.0, 50.0, 0.5), y=(-10.0, 10.0)),
    ),
    decode_head=dict(type='BEVPyramidHead', in_channels=64, channels=128, num_blocks=(4, 2)),
)
