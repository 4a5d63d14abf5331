"""Detect models that take a batch whose inputs are one tensor instead of a list."""

from __future__ import annotations

from typing import Any

from mmtempo.utils.runner import unwrapped

# Preprocessors of other packages whose `forward` takes both, by the class that defines it.
KNOWN = {
    'mmengine.model.base_model.data_preprocessor.ImgDataPreprocessor',
    'mmseg.models.data_preprocessor.SegDataPreProcessor',
    'mmdet.models.data_preprocessors.data_preprocessor.DetDataPreprocessor',
    'mmpretrain.models.utils.data_preprocessor.ClsDataPreprocessor',
}


def takes_stacked_inputs(model: Any) -> bool:
    """Return whether the model's `data_preprocessor` is known to take stacked inputs.

    mmengine's collate function returns a list, and a custom model may rely on it: with a bare
    `BaseDataPreprocessor` the list reaches its `forward`. Classes of mmtempo have the attribute
    `takes_stacked_inputs`; a class that overrides `forward` of a known one counts as unknown.

    Args:
        model: The model, which may be wrapped for distributed training, or None.
    """
    kind = type(getattr(unwrapped(model), 'data_preprocessor', None))
    for base in kind.__mro__:
        if 'forward' in vars(base):
            is_known = f'{base.__module__}.{base.__qualname__}' in KNOWN
            return is_known or 'takes_stacked_inputs' in vars(base)
    return False
