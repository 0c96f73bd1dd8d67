"""Tables larger than memory: rows in partitions, triples in pairs of partitions.

Partition p is the rows [p size, (p + 1) size). The triples between p and q belong to the pair
{p, q}, those within p to the pair {p, p + 1}. An epoch visits the pairs so that from one to the
next mostly one partition changes; meanwhile negatives come from the two partitions that are at
hand. In an epoch every partition is read about P / 2 times, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from medapps.arrays import forget
from medapps.train.random_streams import ORDER, shuffled, stream

Ranges = tuple[tuple[int, int], ...]
AT_ONCE = 2**22
_PARTITIONS = 2**41
"""Part of the order's random numbers that belongs to the order of partitions."""


@dataclass(frozen=True)
class Partitions:
    """Rows [0, rows) cut into `count` ranges of equal size."""

    rows: int
    count: int

    @property
    def size(self) -> int:
        return -(-self.rows // self.count)

    def range(self, part: int) -> tuple[int, int]:
        """First row and the row after the last."""
        return min(part * self.size, self.rows), min((part + 1) * self.size, self.rows)

    @property
    def pairs(self) -> int:
        """Pairs {p, q} with p < q; one partition makes a pair of its own."""
        return max(1, self.count * (self.count - 1) // 2)

    def pair_of(self, head: np.ndarray, tail: np.ndarray) -> np.ndarray:
        """int32: the pair to which triples with these ends belong."""
        if self.count == 1:
            return np.zeros(len(head), np.int32)
        a, b = head // self.size, tail // self.size
        return self.pair(a, np.where(a == b, (a + 1) % self.count, b))

    def pair(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """int32: the number of the pair of two partitions."""
        low, high = np.minimum(a, b), np.maximum(a, b)
        return (high * (high - 1) // 2 + low).astype(np.int32)

    def members(self, pair: int) -> tuple[int, ...]:
        """The partitions of a pair."""
        if self.count == 1:
            return (0,)
        high = int((1 + np.sqrt(1 + 8 * pair)) // 2)
        return pair - high * (high - 1) // 2, high


@dataclass(frozen=True)
class Pairs:
    """The order of an epoch over triples that were put into order by pair."""

    partitions: Partitions
    sizes: tuple[int, ...]
    """Triples of every pair."""
    batch: int
    seed: int

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def steps(self) -> int:
        return sum(-(-size // self.batch) for size in self.sizes)

    def rows(self, epoch: int, step: int) -> np.ndarray:
        pair, inner = self._at(epoch, step)
        size = self.sizes[pair]
        places = np.arange(inner * self.batch, min((inner + 1) * self.batch, size))
        return self._starts[pair] + shuffled(places, size, self.seed, epoch, pair)

    def entities(self, epoch: int, step: int) -> Ranges:
        pair, _ = self._at(epoch, step)
        return tuple(self.partitions.range(part) for part in self.partitions.members(pair))

    def _at(self, epoch: int, step: int) -> tuple[int, int]:
        """The pair of a step, and which of its batches the step is."""
        pairs, ends = _visits(self, epoch)
        place = int(np.searchsorted(ends, step, "right"))
        return int(pairs[place]), step - (int(ends[place - 1]) if place else 0)

    def visits(self, epoch: int) -> np.ndarray:
        """int: pairs with triples, in the order of the epoch."""
        parts = self.partitions
        if parts.count == 1:
            return np.zeros(1, int)
        order = stream(self.seed, ORDER, epoch, _PARTITIONS).permutation(parts.count)
        a, b = order[np.array(list(_snake(parts.count)))].T
        pairs = parts.pair(a, b)
        return pairs[np.asarray(self.sizes)[pairs] > 0]


@lru_cache(maxsize=4)
def _visits(order: Pairs, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = order.visits(epoch)
    steps = -(-np.asarray(order.sizes)[pairs] // order.batch)
    return pairs, np.cumsum(steps)


def _snake(count: int) -> Iterator[tuple[int, int]]:
    """All i < j so that neighbours share a member, nearly always."""
    for i in range(count - 1):
        others = range(i + 1, count)
        yield from ((i, j) for j in (others if i % 2 == 0 else reversed(others)))


def group_triples(triples: np.ndarray, partitions: Partitions, out: np.ndarray) -> tuple[int, ...]:
    """Write the triples in order of their pairs into `out`, a piece at a time; sizes of pairs."""
    sizes = np.zeros(partitions.pairs, np.int64)
    for start in range(0, len(triples), AT_ONCE):
        rows = triples[start : start + AT_ONCE]
        sizes += np.bincount(partitions.pair_of(rows[:, 0], rows[:, 2]), minlength=len(sizes))
        forget(triples)
    place = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for start in range(0, len(triples), AT_ONCE):
        rows = triples[start : start + AT_ONCE]
        pair = partitions.pair_of(rows[:, 0], rows[:, 2])
        order = np.argsort(pair, kind="stable")
        found = np.bincount(pair, minlength=len(sizes))
        first = np.repeat(place - np.concatenate([[0], np.cumsum(found)[:-1]]), found)
        out[np.arange(len(rows)) + first] = rows[order]
        place += found
        forget(triples)
        forget(out)
    return tuple(int(size) for size in sizes)
