"""mmseg's decode heads, with an accuracy that is computed without synchronization."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from mmengine.registry import MODELS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.utils import resize
from mmseg.registry import MODELS as MMSEG_MODELS
from torch import nn

EPS = torch.finfo(torch.float32).eps


def sparse_accuracy(
    pred: torch.Tensor,
    target: torch.Tensor,
    topk: int | tuple[int, ...] = 1,
    ignore_index: int | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Return mmseg's `accuracy`, in percent, counted on the device.

    Stock selects the pixels that are not ignored by a mask. The size of the result depends on
    the values, so the host has to wait for it. A sum over all pixels has a fixed shape.

    Args:
        pred: Scores, (N, classes, ...).
        target: True classes, (N, ...).
        topk: Number of best classes among which the true one must be. A tuple of numbers gives
            a list of accuracies. Defaults to 1.
        ignore_index: Class that is not counted. Defaults to None.
    """
    ranks = (topk,) if isinstance(topk, int) else topk
    if len(pred) == 0:
        results = [pred.new_zeros(()) for _ in ranks]
    else:
        best = pred.detach().topk(max(ranks), dim=1).indices
        correct = best == target.unsqueeze(1)
        total: torch.Tensor | int = target.numel()
        if ignore_index is not None:
            valid = target != ignore_index
            correct &= valid.unsqueeze(1)
            total = valid.sum()
        # If everything is ignored the result is 100, as in stock.
        results = [
            ((correct[:, :rank].sum().float() + EPS) * (100.0 / (total + EPS))).reshape(1)
            for rank in ranks
        ]
    return results[0] if isinstance(topk, int) else results


class _SparseAccuracy(BaseDecodeHead):
    """A base class between a head and `BaseDecodeHead`, which replaces `loss_by_feat`.

    Heads that call `super().loss_by_feat` reach this one as well.
    """

    def loss_by_feat(self, seg_logits: torch.Tensor, batch_data_samples: Sequence) -> dict:
        labels = self._stack_batch_gt(batch_data_samples)
        logits = resize(
            seg_logits, labels.shape[2:], mode='bilinear', align_corners=self.align_corners
        )
        weight = None if self.sampler is None else self.sampler.sample(logits, labels)
        labels = labels.squeeze(1)
        several = isinstance(self.loss_decode, nn.ModuleList)
        losses: dict[str, Any] = {}
        for loss in self.loss_decode if several else [self.loss_decode]:
            value = loss(logits, labels, weight=weight, ignore_index=self.ignore_index)
            name = loss.loss_name
            losses[name] = losses[name] + value if name in losses else value
        losses['acc_seg'] = sparse_accuracy(logits, labels, ignore_index=self.ignore_index)
        return losses

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the original class: this one is created at run time and in no module."""
        cls = type(self)
        if '_sparse_accuracy_of' not in vars(cls):
            return super().__reduce_ex__(protocol)  # a user's subclass, which is in a module
        state = super().__reduce_ex__(protocol)[2:]
        return (_blank, (vars(cls)['_sparse_accuracy_of'],), *state)


def _blank(head: Any) -> BaseDecodeHead:
    """Return a head without parameters, which pickle fills in."""
    cls: Any = sparse_accuracy_class(head)
    return cls.__new__(cls)


def why_not_sparse(head: Any) -> str | None:
    """Return why `SparseAccuracyHead` does not support a head class; None if it does."""
    if not (isinstance(head, type) and issubclass(head, BaseDecodeHead)):
        return "is not one of mmseg's decode heads (BaseDecodeHead)"
    if issubclass(head, _SparseAccuracy):
        return 'counts its accuracy without synchronization already'
    for cls in head.__mro__[: head.__mro__.index(BaseDecodeHead)]:
        own = vars(cls).get('loss_by_feat')
        code = getattr(own, '__code__', None)
        # An override that calls `super().loss_by_feat` reaches ours.
        if own is not None and not (code and {'super', 'loss_by_feat'} <= set(code.co_names)):
            return f'overrides loss_by_feat (in {cls.__name__})'
    return None


@cache
def sparse_accuracy_class(head: type[BaseDecodeHead]) -> type[BaseDecodeHead]:
    """Return the subclass of a head with the other accuracy; cached, so that types compare."""
    reason = why_not_sparse(head)
    if reason is not None:
        raise ValueError(
            f'SparseAccuracyHead: head={getattr(head, "__name__", head)!r} {reason}; '
            'use it as type= directly, without SparseAccuracyHead'
        )
    name = f'SparseAccuracy{head.__name__}'
    about = f'{head.__name__} with an accuracy that is counted on the device.'
    members = dict(__module__=__name__, __qualname__=name, __doc__=about, _sparse_accuracy_of=head)
    metaclass: Any = type(head)
    return metaclass(name, (head, _SparseAccuracy), members)


@MODELS.register_module('SparseAccuracyHead')
def build_sparse_accuracy_head(head: str | type, **kwargs: Any) -> BaseDecodeHead:
    """Build a decode head of mmseg that computes its accuracy without synchronization.

    The result is an instance of the head's class, with the same parameters under the same names,
    and it logs the same values.

    Example::

        decode_head=dict(type='SparseAccuracyHead', head='PSPHead', in_channels=512, ...)

    Args:
        head: Type of the head, as in a config.
        kwargs: Arguments of the head.
    """
    cls: Any = head
    if isinstance(head, str):
        # `get` alone does not search the default scope.
        with MODELS.switch_scope_and_registry(None) as registry:
            cls = registry.get(head) or MMSEG_MODELS.get(head)
        if cls is None:
            raise KeyError(
                f'SparseAccuracyHead: head={head!r} is in no registry of models; check its name, '
                'and custom_imports'
            )
    return sparse_accuracy_class(cls)(**kwargs)
