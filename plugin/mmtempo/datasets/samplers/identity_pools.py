"""Identities and modalities of all samples, and the order in which samples are drawn from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from mmengine.registry import FUNCTIONS

# A key of the data info, or a function that returns the value for a data info.
Source = str | Callable[[dict], Any] | Mapping[str, Any]


def read_columns(dataset: Any, sources: Mapping[str, Source]) -> dict[str, list[Any]]:
    """Return one value per sample for each source, without running the pipeline.

    A data set may offer `get_data_column(key)`, which returns the values of all samples in
    order, or None. Otherwise `get_data_info(index)` is called once per sample.

    Args:
        dataset: The data set.
        sources: Source by config key: a key of the data info, a callable that takes the data
            info, or a dict with the `type` of a function in `FUNCTIONS` and its other arguments.
    """
    columns: dict[str, list[Any]] = {}
    readers: dict[str, Callable[[dict], Any]] = {}
    for argument, source in sources.items():
        column = _ready_column(dataset, argument, source)
        if column is not None:
            columns[argument] = column
        else:
            readers[argument] = _reader(argument, source)
    if not readers:
        return columns
    get_data_info = getattr(dataset, 'get_data_info', None)
    if get_data_info is None:
        raise TypeError(
            f'{", ".join(readers)}: {type(dataset).__name__} has neither get_data_info(index), as '
            'data sets of mmengine do, nor get_data_column(key); add one of them'
        )
    columns.update({argument: [] for argument in readers})
    for index in range(len(dataset)):
        info = get_data_info(index)
        for argument, read in readers.items():
            columns[argument].append(read(info))
    return columns


def _ready_column(dataset: Any, argument: str, source: Source) -> list[Any] | None:
    get_data_column = getattr(dataset, 'get_data_column', None)
    if get_data_column is None or not isinstance(source, str):
        return None
    found = get_data_column(source)
    if found is None:
        return None
    # `tolist` converts numbers of numpy and torch to Python's.
    column = found.tolist() if hasattr(found, 'tolist') else list(found)
    if len(column) != len(dataset):
        raise ValueError(
            f'{argument}: {type(dataset).__name__}.get_data_column({source!r}) must return one '
            f'value per sample ({len(dataset)}), found {len(column)}'
        )
    return column


def _reader(argument: str, source: Source) -> Callable[[dict], Any]:
    if isinstance(source, str):
        return partial(_value, argument, source)
    if isinstance(source, Mapping):
        options = dict(source)
        name = options.pop('type', None)
        function = FUNCTIONS.get(name) if isinstance(name, str) else name
        if not callable(function):
            raise ValueError(
                f'{argument}: type={name!r} is not registered in FUNCTIONS; register it with '
                '@FUNCTIONS.register_module(), in a module that custom_imports names'
            )
        return partial(function, **options)
    if callable(source):
        return source
    raise TypeError(
        f'{argument} must be a key of the data info, a callable that takes the data info, or '
        f'dict(type=...) of a function in FUNCTIONS, found {source!r}'
    )


def _value(argument: str, key: str, info: dict) -> Any:
    if key not in info:
        raise ValueError(
            f'{argument}={key!r}: sample {info.get("sample_idx", "?")} has no {key!r}; '
            f'its data info has: {", ".join(sorted(map(str, info)))}'
        )
    return info[key]


class Pool:
    """A subset of the samples, grouped by identity in one array.

    Args:
        codes: Identity of each sample; -1 excludes the sample.
        chosen: Mask of the samples that belong to this pool.
        count: The number of identities.
    """

    def __init__(self, codes: np.ndarray, chosen: np.ndarray, count: int) -> None:
        self.chosen = chosen
        samples = np.flatnonzero(chosen)
        # Excluded samples sort before the first identity, so no slice contains them.
        self._members = samples[np.argsort(codes[samples], kind='stable')]
        self._ends = np.searchsorted(codes[self._members], np.arange(count + 1))

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each identity."""
        return np.diff(self._ends)

    def of(self, identity: int) -> list[int]:
        """Return the samples of an identity."""
        return self._members[self._ends[identity] : self._ends[identity + 1]].tolist()


class Deck:
    """The samples of a pool in random order: each is drawn once before any is drawn again.

    Args:
        pool: The samples.
        rng: The generator that shuffles them.
    """

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool = pool
        self._rng = rng
        self._left: dict[int, list[int]] = {}

    def draw(self, identity: int, taken: list[int]) -> int | None:
        """Draw a sample of an identity that is not in `taken`; None where there is none.

        Samples in `taken` are removed from this deck, too: another deck has just drawn them.
        """
        left = self._left.get(identity, [])
        for _ in range(2):  # the rest of this deck, then a new one
            while left:
                sample = left.pop()
                if sample not in taken:
                    return sample
            left = self._left[identity] = self.pool.of(identity)
            self._rng.shuffle(left)
        return None


@dataclass(frozen=True)
class Pools:
    """The pools that a batch is drawn from.

    Attributes:
        everything: All samples.
        wanted: One pool per modality that is required or preferred; required ones first.
        complete: Samples with all these modalities; None where no modality is preferred.
    """

    everything: Pool
    wanted: tuple[Pool, ...] = ()
    complete: Pool | None = None


@dataclass
class Repeats:
    """Counts of identities with too few samples, over the batches of all processes.

    Attributes:
        visits: How often an identity was drawn.
        short_visits: How often an identity with fewer than K samples was drawn.
        repeated: Samples that were drawn more than once for the same batch.
    """

    visits: int = 0
    short_visits: int = 0
    repeated: int = 0


class Dealer:
    """The draw of the K samples of one identity in a batch.

    Args:
        pools: The pools to draw from.
        size: K, the number of samples to draw.
        rng: The generator of all draws.
        repeats: The counts, which each draw updates.
    """

    def __init__(self, pools: Pools, size: int, rng: random.Random, repeats: Repeats) -> None:
        self._size, self._rng, self._repeats = size, rng, repeats
        self._everything = Deck(pools.everything, rng)
        self._wanted = [Deck(pool, rng) for pool in pools.wanted]
        self._complete = None if pools.complete is None else Deck(pools.complete, rng)

    def deal(self, identity: int) -> list[int]:
        """Draw K samples, all different unless the identity has fewer than K."""
        taken: list[int] = []
        if self._complete is not None:
            self._fill(taken, self._complete, identity)
        for deck in self._wanted:
            if len(taken) == self._size:
                break
            if any(deck.pool.chosen[sample] for sample in taken):
                continue
            found = deck.draw(identity, taken)
            if found is not None:
                taken.append(found)
        self._fill(taken, self._everything, identity)
        self._repeats.visits += 1
        missing = self._size - len(taken)
        if missing:
            self._repeats.short_visits += 1
            self._repeats.repeated += missing
            self._rng.shuffle(taken)
            whole, rest = divmod(self._size, len(taken))
            taken = taken * whole + taken[:rest]
        self._rng.shuffle(taken)
        return taken

    def _fill(self, taken: list[int], deck: Deck, identity: int) -> None:
        while len(taken) < self._size:
            sample = deck.draw(identity, taken)
            if sample is None:
                return
            taken.append(sample)


def endless_identities(count: int, distinct: int, rng: random.Random) -> Iterator[int]:
    """Yield permutation after permutation of the identities, none of which recurs too soon.

    At least half of the other identities, or `distinct - 1`, come between two visits of the same
    identity. So consecutive batches, which several processes train on at the same time, have no
    identity in common, and yet the order does not depend on the number of processes.

    Args:
        count: The number of identities.
        distinct: How many consecutive identities must differ; at most `count`.
        rng: The generator that shuffles them.
    """
    gap = min(max(distinct - 1, count // 2), count - 1)
    order = list(range(count))
    rng.shuffle(order)
    while True:
        yield from order
        # The last ones become available again only once `gap` others have been drawn.
        free, waiting = order[: count - gap], iter(order[count - gap :])
        order = []
        for _ in range(count):
            index = rng.randrange(len(free))
            free[index], free[-1] = free[-1], free[index]
            order.append(free.pop())
            free.extend(islice(waiting, 1))
