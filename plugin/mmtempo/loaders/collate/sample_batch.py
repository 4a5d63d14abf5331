"""The data samples of a batch, their tensors stacked; and where stacked tensors are put."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cv2
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import get_worker_info

from mmtempo.loaders import shared_slabs

Path = tuple[str, ...]
# What of an element is looked at; most of its attributes are meta information.
HOLDING = (torch.Tensor, BaseDataElement)


class Field(NamedTuple):
    """One field of all samples.

    Attributes:
        path: The attributes that lead to it.
        values: The tensors of the samples, stacked.
    """

    path: Path
    values: torch.Tensor


class SampleBatch(list[Any]):
    """The list of a batch's data samples that `pseudo_collate` gives, but light to move.

    The samples are mmengine's data elements with the same fields and meta information. A tensor
    field that all of them have, in one shape and type, is a *view* of one stacked tensor::

        stacked['gt_bev']   (B, rows, columns)   one piece of shared memory, one pin
             |  |  |  '---- batch[3].gt_bev
             |  |  '------- batch[2].gt_bev
             ...

    Only the stacked tensors and what is left of the samples go through a pipe; the views are
    made again where they arrive. Made of samples alone, as preprocessors do after they have
    moved each, it is a plain list.

    Args:
        samples: The data samples. Defaults to ().
        fields: Their stacked fields by name; the samples hold the views. Defaults to None.
    """

    def __init__(self, samples: Iterable[Any] = (), fields: dict[str, Field] | None = None) -> None:
        super().__init__(samples)
        self._fields = fields or {}

    @classmethod
    def of(cls, samples: Sequence[BaseDataElement]) -> SampleBatch:
        """Stack what can be; nothing in the result is the samples' own memory."""
        tensors = [_tensors(sample) for sample in samples]
        fields = {}
        for path in sorted(tensors[0]):
            values = [each[path] for each in tensors if path in each]
            if len(values) == len(samples) and can_stack(values):
                fields[_name(samples[0], path)] = Field(path, stack(values))
        apart = {field.path for field in fields.values()}

        def detach(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
            return None if path in apart else own(tensor)

        return _assemble([_changed(sample, detach) for sample in samples], fields)

    @property
    def stacked(self) -> dict[str, torch.Tensor]:
        """Stacked tensors by name, without those that a sample no longer looks into.

        Samples may have been moved, replaced or given other values since. The name is that of
        the field; `data` of a `PixelData` goes by the latter's (`gt_sem_seg`), others within
        are joined by dots (`gt_instances.labels`).
        """
        return {name: field.values for name, field in self._in_step().items()}

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SampleBatch:
        """The same batch of other tensors: the function gets each stacked one as a whole."""
        fields = {
            name: field._replace(values=function(field.values))
            for name, field in self._in_step().items()
        }
        return _assemble(self._without(fields, function), fields)

    def pin_memory(self) -> SampleBatch:
        """The same batch in pinned memory: one pin a stacked tensor; torch's loader calls it."""
        return self.apply(torch.Tensor.pin_memory)

    def __reduce__(self) -> tuple[Callable, tuple]:
        fields = self._in_step()
        return _assemble, (self._without(fields), fields)

    def _in_step(self) -> dict[str, Field]:
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
        """Copies of the samples without these fields; the function gets all other tensors."""
        apart = {field.path for field in fields.values()}

        def change(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
            if path in apart:
                return None
            return tensor if function is None else function(tensor)

        return [
            _changed(each, change) if isinstance(each, BaseDataElement) else each for each in self
        ]


def can_stack(values: Sequence[Any]) -> bool:
    """Whether they are plain tensors on the host, of one shape and type."""
    return all(is_plain(value) for value in values) and (
        len({(value.shape, value.dtype) for value in values}) == 1
    )


def is_plain(value: Any) -> bool:
    """Whether it is a tensor that may be copied as bytes."""
    return (
        type(value) is torch.Tensor
        and value.device.type == 'cpu'
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )


def stack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """As `torch.stack`; within a worker right into shared memory, which saves a copy."""
    out = new_tensor((len(values), *values[0].shape), values[0].dtype)
    if not all(map(_is_side_by_side, values)):
        return torch.stack(list(values), out=out)
    for value, planes in zip(values, out.numpy()):
        cv2.split(value.permute(1, 2, 0).numpy(), list(planes))
    return out


def _is_side_by_side(value: torch.Tensor) -> bool:
    """Whether it is an image whose pixels hold their colours, which OpenCV parts faster."""
    if value.dtype != torch.uint8 or value.dim() != 3 or not value.numel():
        return False
    return value.stride(0) == 1 and value.stride(2) == value.shape[0] == 3


def own(value: Any) -> Any:
    """A copy, unless it is no plain tensor: the data set may keep its own, read only even."""
    return new_tensor(value.shape, value.dtype).copy_(value) if is_plain(value) else value


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor, within a worker in shared memory."""
    size = math.prod(shape)
    found = shared_slabs.new_tensor(shape, dtype) if size else None
    if found is not None:
        return found
    if get_worker_info() is None or not size:
        return torch.empty(tuple(shape), dtype=dtype)
    # There is no public way; torch's own default_collate goes this one.
    storage = torch.UntypedStorage._new_shared(size * dtype.itemsize)
    return torch.empty(0, dtype=dtype).set_(storage).view(tuple(shape))


def _assemble(samples: list[Any], fields: dict[str, Field]) -> SampleBatch:
    """Give samples, which are nobody else's, their views."""
    for path, values in fields.values():
        for sample, view in zip(samples, values):
            vars(_look_up(sample, path[:-1]))[path[-1]] = view
    return SampleBatch(samples, fields)


def _tensors(element: BaseDataElement, path: Path = ()) -> dict[Path, torch.Tensor]:
    """Tensor fields, however deep; meta information is none."""
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
    """A copy of an element, with other tensors in it.

    By way of its attributes, as pickle does it: its setters would copy all meta information and
    check what has been checked.
    """
    cls: Any = type(element)
    copied = cls.__new__(cls)
    held = vars(copied)
    held.update(vars(element))
    meta = element.metainfo_keys()
    for name, value in vars(element).items():
        if isinstance(value, set):  # the names of its fields, which change with them
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
    """Whether a field still is this view: the same memory, read in the same way."""
    return (
        isinstance(value, torch.Tensor)
        and value.data_ptr() == view.data_ptr()
        and value.shape == view.shape
        and value.stride() == view.stride()
        and value.dtype == view.dtype
        and value.device == view.device
    )


def _name(sample: BaseDataElement, path: Path) -> str:
    """What a user calls it: mmseg keeps `gt_sem_seg` as `_gt_sem_seg`, behind a property."""
    names = []
    for part in path:
        public = part.removeprefix('_')
        is_property = isinstance(getattr(type(sample), public, None), property)
        names.append(public if is_property else part)
        sample = vars(sample)[part]
    if len(names) > 1 and names[-1] == 'data':
        names.pop()
    return '.'.join(names)
