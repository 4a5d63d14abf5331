"""Batches of P identities with K samples each."""

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

from .epoch_sampler import EpochSampler
from .identity_pools import Dealer, Pool, Pools, Repeats, endless_identities
from .sample_columns import Source, read_columns


@DATA_SAMPLERS.register_module()
class PKSampler(EpochSampler):
    """Each run of P x K indices holds P identities with K samples each: one batch.

    Identity and modalities of all samples are read once, into arrays, from the annotations; a
    draw costs the same however large the data set is.

    ::

        epoch: a permutation of the identities, and another one, ...
        batch: P of them in a row, each with K samples off its own shuffled deck

    The order is a function of (seed, epoch), and is dealt out to the processes batch by batch:
    they have no identity in common as long as P x processes is at most half of all identities.
    An epoch has as many batches as the samples fill, at least one, and the same number for all
    processes. Identities are drawn equally often, so not every sample of a large one is seen in
    each epoch. An identity with fewer than K samples gives all of them, and some of them again;
    a line at the end of the epoch says how often, and `repeats` at any time.

    The loader's `batch_size` must be P x K; `check_batch_size` tells.

    Example::

        train_dataloader = dict(
            batch_size=32,
            sampler=dict(
                type='PKSampler', identities=8, instances=4, identity_key='pid',
                modality_key='modality', required=['rgb', 'ir']))

    Args:
        dataset: The data set.
        identities: P, the identities of a batch. Defaults to 8.
        instances: K, the samples of each of them. Defaults to 4.
        identity_key: Where a sample's identity is: a key of its data info, a callable that takes
            the data info, or `dict(type=...)` of one in `FUNCTIONS`. It is a whole number or a
            string; samples with None are left out. Defaults to 'identity'.
        modality_key: Likewise, its modalities: a name, several, or a dict of them, of which those
            that are None or False do not count. Defaults to None.
        required: Modalities that the K samples of an identity must have between them. An
            identity that cannot is left out. At most K. Defaults to ().
        preferred: Modalities that they are to have between them as far as the identity has them
            and K allows. Samples with all of `required` and `preferred` are drawn before all
            others, so an identity that has K of them gives no others. Defaults to ().
        seed: Of the order; None draws one that all processes share. Defaults to None.
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
        self.identities = _positive('identities', identities)
        self.instances = _positive('instances', instances)
        required, preferred = _names('required', required), _names('preferred', preferred)
        wanted = tuple(dict.fromkeys([*required, *preferred]))
        if len(required) > instances:
            raise ValueError(
                f'PKSampler.required names {len(required)} modalities, for which '
                f'instances={instances} samples of an identity may be too few; raise instances'
            )
        sources = {'PKSampler.identity_key': identity_key}
        if wanted:
            if modality_key is None:
                raise ValueError(
                    'PKSampler.modality_key is missing: required and preferred need to know '
                    'where the modalities of a sample are'
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
        """Number the identities anew that have what is required; say what became of the others."""
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
                f'identities can be used{left_out}; lower identities, or require less'
            )
        # What is behind the last identity stands for samples without one.
        codes = np.append(np.where(usable, np.cumsum(usable) - 1, -1), -1)[codes]
        everyone = np.ones(len(codes), dtype=bool)
        complete = np.logical_and.reduce([everyone, *masks.values()])
        self._pools = Pools(
            Pool(codes, everyone, self._count),
            tuple(Pool(codes, mask, self._count) for mask in masks.values()),
            Pool(codes, complete, self._count) if len(masks) > len(required) else None,
        )
        sizes = self._pools.everything.sizes
        batches = max(1, int(sizes.sum()) // (self.identities * self.instances))
        self.batches = -(-batches // self.world_size)
        print_log(
            f'PKSampler: metadata of {len(codes):,} samples read in {self._seconds:.2f} s; '
            f'{self._count:,} of {count:,} identities ({self._count / count:.1%}) can be used, '
            f'with {sizes.sum():,} samples{left_out}. {np.count_nonzero(sizes < self.instances):,} '
            f'of them have fewer than {self.instances} samples. {self.batches:,} batches of '
            f'{self.identities} x {self.instances} an epoch for each of {self.world_size} '
            'process(es)',
            logger='current',
        )

    def __len__(self) -> int:
        return self.batches * self.identities * self.instances

    def check_batch_size(self, batch_size: int) -> None:
        """Raise ValueError where the loader would cut the batches elsewhere."""
        size = self.identities * self.instances
        if batch_size != size:
            raise ValueError(
                f'batch_size={batch_size}, but PKSampler makes batches of identities x instances '
                f'= {self.identities} x {self.instances}; set batch_size={size}'
            )

    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """From the first whole batch on that is at `start` or behind it."""
        repeats = self.repeats = Repeats()
        first = -(-start // (self.identities * self.instances))
        mine = range(first * self.world_size + self.rank, self.batches * self.world_size)
        batches = self._all_batches(epoch, repeats)
        for batch in islice(batches, mine.start, mine.stop, self.world_size):
            yield from batch
        if repeats.short_visits:
            print_log(
                f'PKSampler, epoch {epoch}: {repeats.short_visits:,} of {repeats.visits:,} times '
                f'({repeats.short_visits / repeats.visits:.1%}) an identity had fewer than '
                f'{self.instances} samples; {repeats.repeated:,} samples were drawn again',
                logger='current',
            )

    def _all_batches(self, epoch: int, repeats: Repeats) -> Iterator[list[int]]:
        """Those of all processes, without an end."""
        rng = random.Random(f'{self.seed} {epoch}')
        dealer = Dealer(self._pools, self.instances, rng, repeats)
        order = endless_identities(self._count, self.identities, rng)
        while True:
            batch: list[int] = []
            for identity in islice(order, self.identities):
                batch += dealer.deal(identity)
            yield batch


def _positive(argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f'PKSampler.{argument} must be an integer of 1 or more, found {value!r}')
    return value


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'PKSampler.{argument} must be a list of names, found {names!r}')
    return tuple(dict.fromkeys(names))


def _codes(identities: Iterable[Any]) -> tuple[np.ndarray, int]:
    """A number for each sample's identity, -1 for none; and how many there are."""
    known: dict[Any, int] = {}
    codes = []
    for index, identity in enumerate(identities):
        if identity is None:
            codes.append(-1)
            continue
        # Others may have no value of their own to be compared by, such as tensors.
        if not isinstance(identity, (int, str, np.integer)):
            raise TypeError(
                f'PKSampler.identity_key: the identity of sample {index} is a '
                f'{type(identity).__name__}; it must be a whole number or a string'
            )
        codes.append(known.setdefault(identity, len(known)))
    return np.array(codes, dtype=np.int64), len(known)


def _masks(values: Iterable[Any], wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """Which samples have each of the wanted modalities."""
    sets = [_modalities(index, value) for index, value in enumerate(values)]
    found = Counter(name for names in sets for name in names)
    unknown = [name for name in wanted if name not in found]
    if unknown:
        listed = ', '.join(f'{name!r} ({count:,})' for name, count in found.most_common())
        raise ValueError(
            f'PKSampler: no sample has the modality {", ".join(map(repr, unknown))} that required '
            f'or preferred asks for; samples by modality: {listed or "none"}'
        )
    return {name: np.array([name in names for names in sets], dtype=bool) for name in wanted}


def _modalities(index: int, value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    if isinstance(value, str):
        return frozenset([value])
    if isinstance(value, Mapping):
        present = (name for name, what in value.items() if what is not None and what is not False)
        return frozenset(present)
    if isinstance(value, (list, tuple, set, frozenset)):
        return frozenset(value)
    raise TypeError(
        f'PKSampler.modality_key: the modalities of sample {index} are a {type(value).__name__}; '
        'expected a name, several, or a dict of them'
    )
