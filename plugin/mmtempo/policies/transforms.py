"""Replace stock transforms in the pipelines of a config by exact and faster ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS
from mmengine.utils import get_object_from_string

from mmtempo.models import SparseSegDataPreProcessor
from mmtempo.replacements import TRANSFORMS as OURS

from .drop_in import ConfigChange, class_of
from .editor import Editor

# Classes instead of names: a RandomCrop of another package is not the stock one.
STOCK: dict[type, str] = {get_object_from_string(path): ours for path, ours in OURS.items()}
# Keeps labels as bytes, which only our preprocessor converts.
PACKING = 'FastPackSegInputs'


def exchange_transforms(cfg: Config, keep: Collection[str] = ()) -> list[ConfigChange]:
    """Replace stock transforms by those of mmtempo, in place; samples are equal to the bit.

    Transforms are replaced one by one, by class, wherever they are in a pipeline: within
    `Compose`, `RandomChoice` and other transforms, and in the data sets of wrappers such as
    `RepeatDataset` and `ConcatDataset`. Transforms of other packages stay where they are.

    Args:
        cfg: The complete config of a training.
        keep: Keys that the user has set, as in --cfg-options; what they set is kept.
            Defaults to ().

    Returns:
        The changes, one for each data loader.
    """
    editor = Editor(cfg, keep)
    preprocessor = editor.get('model.data_preprocessor')
    has_ours = class_of(cfg, MODELS, preprocessor or {}) is SparseSegDataPreProcessor
    changes = []
    for split in ('train', 'val', 'test'):
        key = f'{split}_dataloader.dataset'
        replaced: dict[str, str] = {}
        for place, node in _transforms(editor.get(key), key, False):
            cls = class_of(cfg, TRANSFORMS, node)
            ours = STOCK.get(cls)
            if ours is None or editor.is_kept(place):
                continue
            if ours == PACKING and not (has_ours and split == 'train'):
                continue
            node['type'] = ours
            replaced[cls.__name__] = ours
        if replaced:
            before, after = ', '.join(replaced), ', '.join(replaced.values())
            changes.append(ConfigChange(key, before, after, 'equal samples in less time'))
    return changes


def _transforms(node: Any, key: str, is_in_pipeline: bool) -> Iterator[tuple[str, Any]]:
    """Yield key and config of each transform in the pipelines of a data set."""
    if isinstance(node, Mapping):
        if is_in_pipeline and isinstance(node.get('type'), (str, type)):
            yield key, node
        for name, child in node.items():
            yield from _transforms(child, f'{key}.{name}', is_in_pipeline or name == 'pipeline')
    elif isinstance(node, (list, tuple)):
        for index, child in enumerate(node):
            yield from _transforms(child, f'{key}.{index}', is_in_pipeline)
