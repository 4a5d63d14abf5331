# The config of mmseg, unchanged. mmengine looks up a base 'mmseg::...' by the name of the original
# package, which fails with onedl-mmsegmentation.
_base_ = __import__('mmtempo.cli.config').cli.config.resolve_config_path(
    'mmseg::pspnet/pspnet_r50-d8_4xb4-160k_ade20k-512x512'
)
