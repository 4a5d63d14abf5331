"""Faster versions of mmseg's transforms with the same results; only `type` changes."""

from .fast_load_annotations import FastLoadAnnotations
from .fast_load_image_from_file import FastLoadImageFromFile
from .fast_pack_seg_inputs import FastPackSegInputs
from .fast_photometric_distortion import FastPhotoMetricDistortion
from .fast_random_crop import FastRandomCrop
from .fast_random_flip import FastRandomFlip
from .resize_random_crop import ResizeRandomCrop

__all__ = [
    'FastLoadAnnotations',
    'FastLoadImageFromFile',
    'FastPackSegInputs',
    'FastPhotoMetricDistortion',
    'FastRandomCrop',
    'FastRandomFlip',
    'ResizeRandomCrop',
]
