# The config of mmseg, unchanged. mmengine looks up a base 'mmseg::...' by the name of the original
# package, which fails with onedl-mmsegmentation.
_base_ = __import__('mmtempo.cli.config').cli.config.resolve_config_path(
    'mmseg::pspnet/pspnet_r50-d8_4xb2-80k_cityscapes-512x1024'
)
