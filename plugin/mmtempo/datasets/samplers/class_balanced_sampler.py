"""Samples with rare classes, drawn more often."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized

import numpy as np
import torch
from mmengine.dist import broadcast, is_distributed
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS

from .epoch_sampler import EpochSampler
from .label_counts import count_labels


@DATA_SAMPLERS.register_module()
class ClassBalancedSampler(EpochSampler):
    """For segmentation: draws samples that show rare classes more often than the others.

    Repeat-factor sampling (LVIS, arXiv:1908.03195), as drawing by weight::

        f_c = share of the samples that show class c in `min_pixels` pixels or more
        r_c = max(1, (threshold / f_c) ** power)      how rare a class is
        w_i = max(r_c of the classes c that sample i shows), 1 where it shows none

    A sample's expected number of draws in an epoch is proportional to w_i, and it is drawn that
    many times rounded down or up, rather than left to chance each time: what is
    expected once is seen once. The square root (`power=0.5`) evens out without drawing the few
    samples of the rarest class over and over; `threshold=1, power=1` is weighting by inverse
    frequency.

    The labels are read once, in the first process, by threads, and the pixels of each class kept
    in a file; from then on only labels are read that are new or were changed. The order is a
    function of (seed, epoch), and all processes have equally many samples.

    Example::

        train_dataloader = dict(
            sampler=dict(type='ClassBalancedSampler', threshold=0.5), ...)

    Args:
        dataset: One whose data infos have mmseg's `seg_map_path` or our `bev_path`.
        threshold: Classes that a smaller share of the samples shows are rare. Defaults to 0.5.
        power: How strongly rare classes are favoured. Defaults to 0.5.
        min_pixels: Pixels (of a BEV label: cells) that show a class. Defaults to 1.
        num_samples: Of an epoch, in all processes. Defaults to None: as the data set has.
        cache_file: Where the pixels of each class are kept, an .npz file. Defaults to None: in the
            user's cache folder, named after the labels' paths.
        seed: Of the order; None draws one that all processes share. Defaults to None.
    """

    def __init__(
        self,
        dataset: Sized,
        threshold: float = 0.5,
        power: float = 0.5,
        min_pixels: int = 1,
        num_samples: int | None = None,
        cache_file: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, seed)
        if not 0 < threshold <= 1:
            raise ValueError(
                f'ClassBalancedSampler.threshold is a share of the samples, above 0 and at most 1, '
                f'found {threshold!r}'
            )
        if not (math.isfinite(power) and power >= 0):
            raise ValueError(f'ClassBalancedSampler.power must be 0 or more, found {power!r}')
        for name, value in dict(min_pixels=min_pixels, num_samples=num_samples).items():
            if value is not None and value < 1:
                raise ValueError(f'ClassBalancedSampler.{name} must be 1 or more, found {value!r}')
        self.num_samples = num_samples or len(dataset)
        shown = self._counts(cache_file) >= min_pixels
        self.frequencies = shown.mean(0)
        # What no sample shows is not rare, but absent.
        frequencies = np.where(self.frequencies > 0, self.frequencies, 1)
        self.class_factors = np.maximum(1, (threshold / frequencies) ** power)
        self.weights = np.where(shown, self.class_factors, 1).max(1)
        self._say()

    def _counts(self, cache_file: str | None) -> np.ndarray:
        """The first process's, in all of them: so they draw alike whatever their files hold."""
        if not is_distributed():
            return count_labels(self.dataset, cache_file)
        shape = torch.zeros(2, dtype=torch.int64)
        if self.rank == 0:
            counts = torch.from_numpy(count_labels(self.dataset, cache_file))
            shape = torch.tensor(counts.shape)
        broadcast(shape)
        if self.rank != 0:
            counts = torch.zeros(*shape.tolist(), dtype=torch.int64)
        broadcast(counts)
        return counts.numpy()

    def _say(self) -> None:
        names: Sequence[str] = self.dataset.metainfo.get('classes') or ()  # type: ignore[attr-defined]
        if len(names) != len(self.frequencies):
            names = [str(number) for number in range(len(self.frequencies))]
        rarest = np.argsort(self.frequencies, kind='stable')
        absent = [names[c] for c in rarest if self.frequencies[c] == 0]
        listed = [
            f'{names[c]} {self.frequencies[c]:.1%} x{self.class_factors[c]:.2f}'
            for c in rarest
            if self.class_factors[c] > 1
        ]
        print_log(
            f'ClassBalancedSampler: {len(self.weights):,} samples, weights 1 to '
            f'{self.weights.max():.2f}; rare classes (share of the samples, factor): '
            f'{", ".join(listed) or "none"}'
            + (f'; in no sample: {", ".join(absent)}' if absent else ''),
            logger='current',
        )

    def __len__(self) -> int:
        return -(-self.num_samples // self.world_size)

    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """Every `world_size`-th of all that are drawn; the first ones again where they run out."""
        drawn = np.resize(self._drawn(epoch), len(self) * self.world_size)
        yield from drawn[self.rank :: self.world_size][start:].tolist()

    def _drawn(self, epoch: int) -> np.ndarray:
        """Points at equal distances on the weights laid end to end, in random order."""
        rng = np.random.default_rng([self.seed, epoch])
        laid = rng.permutation(len(self.weights))
        ends = np.cumsum(self.weights[laid])
        points = (rng.random() + np.arange(self.num_samples)) * (ends[-1] / self.num_samples)
        # Rounding may put the last point behind the last end.
        places = np.minimum(np.searchsorted(ends, points, side='right'), len(ends) - 1)
        return rng.permutation(laid[places])
