"""Samples by identity, and the order in which they and the identities are drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np


class Pool:
    """Some samples of each identity, in one array.

    Args:
        codes: Identity of each sample; -1 for one that is not to be drawn.
        chosen: Which samples belong to this pool.
        count: Of identities.
    """

    def __init__(self, codes: np.ndarray, chosen: np.ndarray, count: int) -> None:
        self.chosen = chosen
        samples = np.flatnonzero(chosen)
        # Those that are not to be drawn come first, before where the first identity begins.
        self._members = samples[np.argsort(codes[samples], kind='stable')]
        self._ends = np.searchsorted(codes[self._members], np.arange(count + 1))

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each identity."""
        return np.diff(self._ends)

    def of(self, identity: int) -> list[int]:
        """The samples of an identity."""
        return self._members[self._ends[identity] : self._ends[identity + 1]].tolist()


class Deck:
    """A pool's samples in random order: each is drawn once before any is drawn again.

    Args:
        pool: The samples.
        rng: Shuffles them.
    """

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool = pool
        self._rng = rng
        self._left: dict[int, list[int]] = {}

    def draw(self, identity: int, taken: list[int]) -> int | None:
        """A sample that is not taken yet; None where there is none.

        Those that are taken come off the deck too: they have just been drawn off another one.
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
    """All that can be drawn.

    Attributes:
        everything: All samples.
        wanted: Of those, the ones with each modality that is asked for; required ones first.
        complete: The ones with all these modalities; None where they are not preferred.
    """

    everything: Pool
    wanted: tuple[Pool, ...] = ()
    complete: Pool | None = None


@dataclass
class Repeats:
    """How often an identity had too few samples, in the batches of all processes.

    Attributes:
        visits: Times that an identity was drawn.
        short_visits: Of those, with an identity that has fewer than K samples.
        repeated: Samples that were drawn again for the same batch.
    """

    visits: int = 0
    short_visits: int = 0
    repeated: int = 0


class Dealer:
    """Deals the samples of an identity that a batch is to hold.

    Args:
        pools: What can be drawn.
        size: Samples to deal.
        rng: Of all draws.
        repeats: Is kept up to date.
    """

    def __init__(self, pools: Pools, size: int, rng: random.Random, repeats: Repeats) -> None:
        self._size, self._rng, self._repeats = size, rng, repeats
        self._everything = Deck(pools.everything, rng)
        self._wanted = [Deck(pool, rng) for pool in pools.wanted]
        self._complete = None if pools.complete is None else Deck(pools.complete, rng)

    def deal(self, identity: int) -> list[int]:
        """Different ones, unless the identity has too few."""
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
    """Permutation after permutation of the identities, none of which comes again too soon.

    At least half of the others, or `distinct - 1`, come between two visits of an identity. So
    batches that follow on each other, which several processes train on at the same time, have no
    identity in common, and yet the order does not depend on how many processes there are.

    Args:
        count: Of identities.
        distinct: How many in a row must differ; at most `count`.
        rng: Shuffles them.
    """
    gap = min(max(distinct - 1, count // 2), count - 1)
    order = list(range(count))
    rng.shuffle(order)
    while True:
        yield from order
        # The last ones may be drawn again only when they have waited long enough.
        free, waiting = order[: count - gap], iter(order[count - gap :])
        order = []
        for _ in range(count):
            place = rng.randrange(len(free))
            free[place], free[-1] = free[-1], free[place]
            order.append(free.pop())
            free.extend(islice(waiting, 1))
