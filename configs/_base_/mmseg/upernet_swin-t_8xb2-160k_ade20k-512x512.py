# The config of mmseg, unchanged. mmengine looks up a base 'mmseg::...' by the name of the original
# package, which fails with onedl-mmsegmentation.
_base_ = __import__('mmtempo.cli.config').cli.config.resolve_config_path(
    'mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512'
)
