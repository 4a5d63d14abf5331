# The config of mmseg, unchanged. mmengine looks up a base 'mmseg::...' by the name of the original
# package, which fails with onedl-mmsegmentation.
_base_ = __import__('mmtempo.cli.config').cli.config.resolve_config_path(
    'mmseg::segformer/segformer_mit-b0_8xb1-160k_cityscapes-1024x1024'
)
