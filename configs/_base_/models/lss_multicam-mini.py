# The model at a size that a CPU trains in minutes: a quarter of the channels, no pretraining.
_base_ = ['./lss_multicam-r18.py']
model = dict(
    backbone=dict(base_channels=16, stem_channels=16, init_cfg=None),
    view_transform=dict(
        in_channels=64,
        out_channels=32,
        ground=0.0,  # a few hundred steps are too few to learn depth from scratch
    ),
    decode_head=dict(in_channels=32, channels=32, num_blocks=(2,), groups=4),
)
