"""Sampler of batches of P identities with K samples each."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS

from mmtempo.utils.checks import is_whole
from mmtempo.utils.units import duration, percent

from .epoch_sampler import EpochSampler
from .identity_pools import (
    Dealer,
    Pool,
    Pools,
    Repeats,
    Source,
    endless_identities,
    read_columns,
)


@DATA_SAMPLERS.register_module()
class PKSampler(EpochSampler):
    """A sampler of which each P x K consecutive indices are P identities with K samples each.

    Identity and modalities of all samples are read once, into arrays, from the annotations. The
    cost of a draw does not depend on the size of the data set.

    ::

        epoch: a permutation of the identities, and another one, ...
        batch: P of them in a row, each with K samples off its own shuffled deck

    The order is a function of (seed, epoch). Processes take turns batch by batch, and have no
    identity in common as long as P x processes is at most half of all identities. An epoch has as
    many batches as the samples fill, at least one, and the same number for all processes.
    Identities are drawn equally often, so an epoch may not contain every sample of a large
    identity. An identity with fewer than K samples contributes all of them, some repeatedly; a log
    line at the end of the epoch reports how often, and `repeats` at any time.

    The loader's `batch_size` must be P x K; `check_batch_size` checks that.

    Example::

        train_dataloader = dict(
            batch_size=32,
            sampler=dict(
                type='PKSampler', identities=8, instances=4, identity_key='pid',
                modality_key='modality', required=['rgb', 'ir']))

    Args:
        dataset: The data set.
        identities: P, the number of identities of a batch. Defaults to 8.
        instances: K, the number of samples of each identity. Defaults to 4.
        identity_key: Source of a sample's identity: a key of its data info, a callable that takes
            the data info, or `dict(type=...)` of a function in `FUNCTIONS`. An identity is an
            integer or a string; samples with None are left out. Defaults to 'identity'.
        modality_key: Source of a sample's modalities, of the same forms: a name, several names,
            or a dict of them, where values of None or False mean absent. Defaults to None.
        required: Modalities that the K samples of an identity must have between them; identities
            that lack one are left out. At most K. Defaults to ().
        preferred: Modalities that the K samples should have between them, as far as the identity
            has them and K allows. Samples with all of `required` and `preferred` are drawn first,
            so an identity that has K such samples contributes no others. Defaults to ().
        seed: Seed of the order. Defaults to None: a random seed that all processes share.
    """

    def __init__(
        self,
        dataset: Sized,
        identities: int = 8,
        instances: int = 4,
        identity_key: Source = 'identity',
        modality_key: Source | None = None,
        required: Sequence[str] = (),
        preferred: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, seed)
        self.identities = _checked('identities', identities)
        self.instances = _checked('instances', instances)
        required, preferred = _names('required', required), _names('preferred', preferred)
        wanted = tuple(dict.fromkeys([*required, *preferred]))
        if len(required) > instances:
            raise ValueError(
                f'PKSampler.required must name at most instances={instances} modalities, found '
                f'{len(required)}; raise instances'
            )
        sources = {'PKSampler.identity_key': identity_key}
        if wanted:
            if modality_key is None:
                raise ValueError(
                    'PKSampler.modality_key is missing; required and preferred need the source '
                    "of a sample's modalities"
                )
            sources['PKSampler.modality_key'] = modality_key
        start = time.perf_counter()
        columns = read_columns(dataset, sources)
        codes, count = _codes(columns['PKSampler.identity_key'])
        masks = _masks(columns['PKSampler.modality_key'], wanted) if wanted else {}
        self._seconds = time.perf_counter() - start
        self._keep_usable(codes, count, masks, required)
        self.repeats = Repeats()

    def _keep_usable(
        self, codes: np.ndarray, count: int, masks: dict[str, np.ndarray], required: tuple[str, ...]
    ) -> None:
        """Renumber the identities that have all required modalities; log how many are left out."""
        usable, lacking = np.ones(count, dtype=bool), []
        for name in required:
            having = Pool(codes, masks[name], count).sizes > 0
            usable &= having
            if not having.all():
                lacking.append(f'{np.count_nonzero(~having):,} without {name!r}')
        left_out = f'; left out: {", ".join(lacking)}' if lacking else ''
        self._count = int(usable.sum())
        if self._count < self.identities:
            raise ValueError(
                f'PKSampler.identities={self.identities}, but only {self._count:,} of {count:,} '
                f'identities can be used{left_out}; lower identities, or require fewer modalities'
            )
        # Code -1, of samples without an identity, indexes the appended -1.
        codes = np.append(np.where(usable, np.cumsum(usable) - 1, -1), -1)[codes]
        all_samples = np.ones(len(codes), dtype=bool)
        complete = np.logical_and.reduce([all_samples, *masks.values()])
        self._pools = Pools(
            Pool(codes, all_samples, self._count),
            tuple(Pool(codes, mask, self._count) for mask in masks.values()),
            Pool(codes, complete, self._count) if len(masks) > len(required) else None,
        )
        sizes = self._pools.everything.sizes
        batches = max(1, int(sizes.sum()) // (self.identities * self.instances))
        self.batches = -(-batches // self.world_size)
        print_log(
            f'PKSampler: metadata of {len(codes):,} samples read in {duration(self._seconds)}; '
            f'{self._count:,} of {count:,} identities ({percent(self._count / count)}) can be '
            f'used, with {sizes.sum():,} samples{left_out}; usable identities with fewer than '
            f'{self.instances} samples: {np.count_nonzero(sizes < self.instances):,}; '
            f'{self.batches:,} batches of {self.identities} x {self.instances} per epoch and '
            f'process; processes: {self.world_size}',
            logger='current',
        )

    def __len__(self) -> int:
        return self.batches * self.identities * self.instances

    def check_batch_size(self, batch_size: int) -> None:
        """Raise ValueError where the batch size of the loader is not P x K."""
        size = self.identities * self.instances
        if batch_size != size:
            raise ValueError(
                f'batch_size={batch_size}, but PKSampler makes batches of identities x instances '
                f'= {self.identities} x {self.instances}; set batch_size={size}'
            )

    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """Yield the indices from the first batch that begins at `start` or later."""
        repeats = self.repeats = Repeats()
        first = -(-start // (self.identities * self.instances))
        mine = range(first * self.world_size + self.rank, self.batches * self.world_size)
        batches = self._all_batches(epoch, repeats)
        for batch in islice(batches, mine.start, mine.stop, self.world_size):
            yield from batch
        if repeats.short_visits:
            print_log(
                f'PKSampler: epoch {epoch} drew {repeats.short_visits:,} of {repeats.visits:,} '
                f'identities ({percent(repeats.short_visits / repeats.visits)}) with fewer than '
                f'{self.instances} samples; {repeats.repeated:,} samples were drawn repeatedly',
                logger='current',
            )

    def _all_batches(self, epoch: int, repeats: Repeats) -> Iterator[list[int]]:
        """Yield the batches of all processes, without an end."""
        rng = random.Random(f'{self.seed} {epoch}')
        dealer = Dealer(self._pools, self.instances, rng, repeats)
        order = endless_identities(self._count, self.identities, rng)
        while True:
            batch: list[int] = []
            for identity in islice(order, self.identities):
                batch += dealer.deal(identity)
            yield batch


def _checked(argument: str, value: int) -> int:
    if not is_whole(value):
        raise ValueError(f'PKSampler.{argument} must be an integer of 1 or more, found {value!r}')
    return value


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'PKSampler.{argument} must be a list of names, found {names!r}')
    return tuple(dict.fromkeys(names))


def _codes(identities: Iterable[Any]) -> tuple[np.ndarray, int]:
    """Return the number of each sample's identity, -1 for none, and the count of identities."""
    numbers: dict[Any, int] = {}
    codes = []
    for index, identity in enumerate(identities):
        if identity is None:
            codes.append(-1)
            continue
        # Other types, such as tensors, may compare by object instead of by value.
        if not isinstance(identity, (int, str, np.integer)):
            raise TypeError(
                'PKSampler.identity_key: an identity must be an integer or a string, found '
                f'{type(identity).__name__} in sample {index}'
            )
        codes.append(numbers.setdefault(identity, len(numbers)))
    return np.array(codes, dtype=np.int64), len(numbers)


def _masks(values: Iterable[Any], wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a mask of the samples that have it for each wanted modality."""
    sets = [_modalities(index, value) for index, value in enumerate(values)]
    found = Counter(name for names in sets for name in names)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        listed = ', '.join(f'{name!r} ({count:,})' for name, count in found.most_common())
        raise ValueError(
            'PKSampler.required and preferred: no sample has the modality '
            f'{", ".join(map(repr, unknown))}; found (samples by modality): {listed or "none"}'
        )
    return {name: np.array([name in names for names in sets], dtype=bool) for name in wanted}


def _modalities(index: int, value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    if isinstance(value, str):
        return frozenset([value])
    if isinstance(value, Mapping):
        return frozenset(key for key, one in value.items() if one is not None and one is not False)
    if isinstance(value, (list, tuple, set, frozenset)):
        return frozenset(value)
    raise TypeError(
        'PKSampler.modality_key: modalities must be a name, several names, or a dict of them, '
        f'found {type(value).__name__} in sample {index}'
    )
