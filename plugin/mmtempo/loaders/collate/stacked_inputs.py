"""Which models take a batch whose inputs are one tensor instead of a list of tensors."""

from __future__ import annotations

from typing import Any

from mmengine.model import is_model_wrapper

# Preprocessors of others whose `forward` takes both, by the class that defines it.
KNOWN = {
    'mmengine.model.base_model.data_preprocessor.ImgDataPreprocessor',
    'mmseg.models.data_preprocessor.SegDataPreProcessor',
    'mmdet.models.data_preprocessors.data_preprocessor.DetDataPreprocessor',
    'mmpretrain.models.utils.data_preprocessor.ClsDataPreprocessor',
}


def takes_stacked_inputs(model: Any) -> bool:
    """Return whether the model's `data_preprocessor` is known to take stacked inputs.

    mmengine's collate hands over a list, and a model of a user may rely on it: with a bare
    `BaseDataPreprocessor` the list reaches its `forward`. A class of mmtempo says so by its
    attribute `takes_stacked_inputs`; one that overrides `forward` of a known class is unknown.

    Args:
        model: The model, which may be wrapped for distributed training, or None.
    """
    while is_model_wrapper(model):
        model = model.module
    kind = type(getattr(model, 'data_preprocessor', None))
    for base in kind.__mro__:
        if 'forward' in vars(base):
            is_known = f'{base.__module__}.{base.__qualname__}' in KNOWN
            return is_known or 'takes_stacked_inputs' in vars(base)
    return False
