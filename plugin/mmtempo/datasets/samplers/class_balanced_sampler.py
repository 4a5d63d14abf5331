"""Sampler that draws samples with rare classes more often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

import numpy as np
import torch
from mmengine.dist import broadcast, is_distributed
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS

from mmtempo.utils.checks import is_number, is_number_from, is_whole
from mmtempo.utils.units import percent

from .epoch_sampler import EpochSampler
from .label_histogram import count_labels


@DATA_SAMPLERS.register_module()
class ClassBalancedSampler(EpochSampler):
    """A sampler for segmentation that draws samples with rare classes more often.

    Repeat-factor sampling (LVIS, arXiv:1908.03195), as drawing by weight::

        f_c = share of the samples that show class c in `min_pixels` pixels or more
        r_c = max(1, (threshold / f_c) ** power)      how rare a class is
        w_i = max(r_c of the classes c that sample i shows), 1 where it shows none

    The expected number of draws of a sample in an epoch is proportional to w_i, and the actual
    number is that value rounded down or up: a sample that is expected once is drawn once. The
    square root (`power=0.5`) balances the classes without repeating the few samples of the rarest
    class many times; `threshold=1, power=1` is weighting by inverse frequency.

    Threads of the first process read the labels once and write the pixels of each class to a
    file; later runs read new and changed labels only. The order is a function of (seed, epoch),
    and all processes have the same number of samples.

    Example::

        train_dataloader = dict(
            sampler=dict(type='ClassBalancedSampler', threshold=0.5), ...)

    Args:
        dataset: A data set whose data infos have mmseg's `seg_map_path` or our `bev_path`.
        threshold: Classes shown by a smaller share of the samples are rare. Defaults to 0.5.
        power: How strongly rare classes are favoured. Defaults to 0.5.
        min_pixels: Pixels (in a BEV label: cells) from which on a label shows a class.
            Defaults to 1.
        num_samples: Samples of an epoch in all processes together. Defaults to None: the size of
            the data set.
        cache_file: Path of the .npz file with the pixels of each class. Defaults to None: a file
            in the user's cache folder, named after the paths of the labels.
        seed: Seed of the order. Defaults to None: a random seed that all processes share.
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
        if not (is_number(threshold, above=0) and threshold <= 1):
            raise ValueError(
                'ClassBalancedSampler.threshold must be a share of the samples, above 0 and at '
                f'most 1, found {threshold!r}'
            )
        if not is_number_from(power, 0):
            raise ValueError(f'ClassBalancedSampler.power must be 0 or more, found {power!r}')
        for name, value in dict(min_pixels=min_pixels, num_samples=num_samples).items():
            if value is not None and not is_whole(value):
                raise ValueError(
                    f'ClassBalancedSampler.{name} must be an integer of 1 or more, found {value!r}'
                )
        self.num_samples = num_samples or len(dataset)
        shown = self._counts(cache_file) >= min_pixels
        self.frequencies = shown.mean(0)
        # A class that no sample shows is absent, not rare.
        frequencies = np.where(self.frequencies > 0, self.frequencies, 1)
        self.class_factors = np.maximum(1, (threshold / frequencies) ** power)
        self.weights = np.where(shown, self.class_factors, 1).max(1)
        self._log_weights()

    def _counts(self, cache_file: str | None) -> np.ndarray:
        """Return the counts of the first process in all processes, so that all draw alike.

        Their own files may differ.
        """
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

    def _log_weights(self) -> None:
        names: Sequence[str] = self.dataset.metainfo.get('classes') or ()  # type: ignore[attr-defined]
        if len(names) != len(self.frequencies):
            names = [str(number) for number in range(len(self.frequencies))]
        rarest = np.argsort(self.frequencies, kind='stable')
        absent = [names[c] for c in rarest if self.frequencies[c] == 0]
        rare = [
            f'{names[c]} {percent(self.frequencies[c])} x{self.class_factors[c]:.2f}'
            for c in rarest
            if self.class_factors[c] > 1
        ]
        print_log(
            f'ClassBalancedSampler: {len(self.weights):,} samples, weights 1 to '
            f'{self.weights.max():.2f}; rare classes (share of the samples, factor): '
            f'{", ".join(rare) or "none"}'
            + (f'; in no sample: {", ".join(absent)}' if absent else ''),
            logger='current',
        )

    def __len__(self) -> int:
        return -(-self.num_samples // self.world_size)

    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """Yield every `world_size`-th draw; the first draws fill up the last turn."""
        drawn = np.resize(self._drawn(epoch), len(self) * self.world_size)
        yield from drawn[self.rank :: self.world_size][start:].tolist()

    def _drawn(self, epoch: int) -> np.ndarray:
        """Draw at equidistant points on the weights laid end to end, and shuffle the draws."""
        rng = np.random.default_rng([self.seed, epoch])
        laid = rng.permutation(len(self.weights))
        ends = np.cumsum(self.weights[laid])
        points = (rng.random() + np.arange(self.num_samples)) * (ends[-1] / self.num_samples)
        # Rounding may put the last point after the last end.
        found = np.minimum(np.searchsorted(ends, points, side='right'), len(ends) - 1)
        return rng.permutation(laid[found])
