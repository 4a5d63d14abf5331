# mmseg's own, unchanged. As a plain base, 'mmseg::' is looked for under the name of the original
# package, which onedl-mmsegmentation does not have.
_base_ = __import__('mmtempo.cli.config').cli.config.resolve_config_path(
    'mmseg::pspnet/pspnet_r50-d8_4xb4-160k_ade20k-512x512'
)
