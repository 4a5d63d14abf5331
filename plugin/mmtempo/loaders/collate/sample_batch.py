"""A batch of data samples with stacked tensor fields, and the memory of stacked tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cv2
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import get_worker_info

from mmtempo.loaders import shared_slabs
from mmtempo.loaders.shared_slabs import is_plain

Path = tuple[str, ...]
# Types of attributes that hold fields; most attributes of an element are meta information.
HOLDING = (torch.Tensor, BaseDataElement)


class Field(NamedTuple):
    """A field of all samples of a batch.

    Attributes:
        path: Names of the nested attributes that lead to the field.
        values: Stacked tensors of the samples.
    """

    path: Path
    values: torch.Tensor


class SampleBatch(list[Any]):
    """A list of data samples, as `pseudo_collate` returns it, that is cheap to send and to pin.

    The samples are mmengine's data elements with the same fields and meta information. A tensor
    field that all samples have, in one shape and dtype, is a *view* of one stacked tensor::

        stacked['gt_bev']   (B, rows, columns)   one shared memory segment, one pin
             |  |  |  '---- batch[3].gt_bev
             |  |  '------- batch[2].gt_bev
             ...

    Only the stacked tensors and the rest of the samples are pickled; the receiver creates the
    views again. Constructed from samples alone, as preprocessors do after they have moved each
    sample, it is a plain list.

    Args:
        samples: Data samples. Defaults to ().
        fields: Stacked fields of the samples by name; the samples must hold views of them.
            Defaults to None.
    """

    def __init__(self, samples: Iterable[Any] = (), fields: dict[str, Field] | None = None) -> None:
        super().__init__(samples)
        self._fields = fields or {}

    @classmethod
    def of(cls, samples: Sequence[BaseDataElement]) -> SampleBatch:
        """Copy samples and stack their fields; the result shares no memory with the samples."""
        tensors = [_tensors(sample) for sample in samples]
        fields = {}
        for path in sorted(tensors[0]):
            values = [each[path] for each in tensors if path in each]
            if len(values) == len(samples) and can_stack(values):
                fields[_name(samples[0], path)] = Field(path, stack(values))
        return _assemble(cls(samples)._without(fields, own), fields)

    @property
    def stacked(self) -> dict[str, torch.Tensor]:
        """Stacked tensors by name, without those of which a sample no longer holds a view.

        Samples may have been moved, replaced or given other values since. The name is that of
        the field; `data` of a `PixelData` has the name of the latter (`gt_sem_seg`), and other
        nested names are joined by dots (`gt_instances.labels`).
        """
        return {name: field.values for name, field in self._intact_fields().items()}

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SampleBatch:
        """Return a batch with a function applied to each tensor; stacked ones are passed whole."""
        fields = {
            name: field._replace(values=function(field.values))
            for name, field in self._intact_fields().items()
        }
        return _assemble(self._without(fields, function), fields)

    def pin_memory(self) -> SampleBatch:
        """Return a copy in pinned memory, one per stacked tensor; torch's loader calls this."""
        return self.apply(torch.Tensor.pin_memory)

    def __reduce__(self) -> tuple[Callable, tuple]:
        fields = self._intact_fields()
        return _assemble, (self._without(fields), fields)

    def _intact_fields(self) -> dict[str, Field]:
        return {
            name: field
            for name, field in self._fields.items()
            if len(field.values) == len(self)
            and all(
                _is_same(_look_up(sample, field.path), view)
                for sample, view in zip(self, field.values)
            )
        }

    def _without(
        self,
        fields: dict[str, Field],
        function: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> list[Any]:
        """Copy the samples without these fields, with a function applied to other tensors."""
        stacked_paths = {field.path for field in fields.values()}

        def change(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
            if path in stacked_paths:
                return None
            return tensor if function is None else function(tensor)

        return [
            _changed(each, change) if isinstance(each, BaseDataElement) else each for each in self
        ]


def can_stack(values: Sequence[Any]) -> bool:
    """Return whether values are plain tensors on the host, of one shape and dtype."""
    return all(is_plain(value) for value in values) and (
        len({(value.shape, value.dtype) for value in values}) == 1
    )


def stack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors; in a worker directly into shared memory, which saves a copy."""
    out = new_tensor((len(values), *values[0].shape), values[0].dtype)
    if not all(map(_is_interleaved, values)):
        return torch.stack(list(values), out=out)
    for value, planes in zip(values, out.numpy()):
        cv2.split(value.permute(1, 2, 0).numpy(), list(planes))
    return out


def _is_interleaved(value: torch.Tensor) -> bool:
    """Return whether a tensor is an image with interleaved colors, which OpenCV splits faster."""
    if value.dtype != torch.uint8 or value.dim() != 3 or not value.numel():
        return False
    return value.stride(0) == 1 and value.stride(2) == value.shape[0] == 3


def own(value: Any) -> Any:
    """Copy a plain tensor, whose memory may be the dataset's; return other values unchanged."""
    return new_tensor(value.shape, value.dtype).copy_(value) if is_plain(value) else value


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor, in a worker in shared memory."""
    size = math.prod(shape)
    found = shared_slabs.new_tensor(shape, dtype) if size else None
    if found is not None:
        return found
    if get_worker_info() is None or not size:
        return torch.empty(tuple(shape), dtype=dtype)
    # Not a public function, but the one that torch's default_collate uses.
    storage = torch.UntypedStorage._new_shared(size * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage).view(tuple(shape))


def _assemble(samples: list[Any], fields: dict[str, Field]) -> SampleBatch:
    """Set the views in samples; the samples must be copies that are not used elsewhere."""
    for path, values in fields.values():
        for sample, view in zip(samples, values):
            vars(_look_up(sample, path[:-1]))[path[-1]] = view
    return SampleBatch(samples, fields)


def _tensors(element: BaseDataElement, path: Path = ()) -> dict[Path, torch.Tensor]:
    """Return tensor fields by path, also of nested elements, without meta information."""
    found: dict[Path, torch.Tensor] = {}
    meta = element.metainfo_keys()
    for name, value in vars(element).items():
        if not isinstance(value, HOLDING) or name in meta:
            continue
        if isinstance(value, torch.Tensor):
            found[path + (name,)] = value
        else:
            found.update(_tensors(value, (*path, name)))
    return found


def _changed(
    element: BaseDataElement,
    change: Callable[[Path, torch.Tensor], torch.Tensor | None],
    path: Path = (),
) -> BaseDataElement:
    """Copy an element with `change` applied to its tensors.

    It sets attributes directly, as pickle does: the element's setters would copy all meta
    information and validate it once more.
    """
    cls: Any = type(element)
    copied = cls.__new__(cls)
    held = vars(copied)
    held.update(vars(element))
    meta = element.metainfo_keys()
    for name, value in vars(element).items():
        if isinstance(value, set):  # names of fields, which change with the fields
            held[name] = set(value)
        elif isinstance(value, HOLDING) and name not in meta:
            if isinstance(value, torch.Tensor):
                held[name] = change((*path, name), value)
            else:
                held[name] = _changed(value, change, (*path, name))
    return copied


def _look_up(value: Any, path: Path) -> Any:
    for name in path:
        value = vars(value).get(name) if isinstance(value, BaseDataElement) else None
    return value


def _is_same(value: Any, view: torch.Tensor) -> bool:
    """Return whether a field is still this view: the same memory, with the same layout."""
    return (
        isinstance(value, torch.Tensor)
        and value.data_ptr() == view.data_ptr()
        and value.shape == view.shape
        and value.stride() == view.stride()
        and value.dtype == view.dtype
        and value.device == view.device
    )


def _name(sample: BaseDataElement, path: Path) -> str:
    """Return a field's public name: mmseg stores the property `gt_sem_seg` as `_gt_sem_seg`."""
    names = []
    for part in path:
        public = part.removeprefix('_')
        is_property = isinstance(getattr(type(sample), public, None), property)
        names.append(public if is_property else part)
        sample = vars(sample)[part]
    if len(names) > 1 and names[-1] == 'data':
        names.pop()
    return '.'.join(names)
