"""Randomness by counter, and the order in which an epoch sees the triples.

Every draw is a function of seed, purpose, epoch and step: a resumed run needs only its counters,
the processes of a distributed run agree without talking, and the initial value of a row depends on
the row alone.

A table in memory (`Shuffle`) takes the triples as they are. Up to `WINDOW` of them any triple may
follow any other; beyond, blocks of neighbouring triples are put into random order and only triples
of one window of blocks are mixed, so that a file larger than memory is read once per epoch in
pieces of several pages.

A table in a file (`Pairs`) has its rows in partitions: partition p is the rows [p size,
(p + 1) size). The triples between p and q belong to the pair {p, q}, those within p to the pair
{p, p + 1}. An epoch visits the pairs so that from one to the next mostly one partition changes;
meanwhile negatives come from the two partitions that are at hand. In an epoch every partition is
read about P / 2 times, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from medapps.arrays import forget
from medapps.config import LARGEST_SEED
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.train.config import MedConfig

INIT, ORDER, NEGATIVES, HOLDOUT, CANDIDATES, ROUNDING, DROPS = 0, 1, 2, 4, 5, 6, 7
"""Purposes: streams that never meet."""
BLOCK = 4096
"""Rows of a table that are drawn together."""
WINDOW, NEIGHBOURS = 2**24, 2**10
"""Triples that are mixed with each other (192 MiB), and those that stay in one window (12 KiB)."""
AT_ONCE = 2**22
"""Triples that are sorted by pairs at a time."""
_BLOCKS, _PARTITIONS = 2**40, 2**41
"""Parts of the order's random numbers: of blocks and partitions; windows and pairs count from 0."""
Ranges = tuple[tuple[int, int], ...]
"""First row and the row after the last, of some entities."""


def stream(seed: int, purpose: int, *counters: int) -> np.random.Generator:
    """A generator that belongs to these numbers alone; at most three counters."""
    place = [0, *counters, *(0,) * (3 - len(counters))]
    if not 0 <= seed <= LARGEST_SEED:
        raise MedappsError(f"A seed is a number from 0 to {LARGEST_SEED}, not {seed}.")
    key = np.array([seed, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array(place, np.uint64)))


def start_rows(
    seed: int, table: int, first: int, count: int, width: int, size: float
) -> np.ndarray:
    """float32 (count, width): uniform start values; rows have expected length about `size`."""
    bound = size * np.sqrt(3.0 / width)
    out = np.empty((count, width), np.float32)
    for block in range(first // BLOCK, -(-(first + count) // BLOCK)):
        rows = stream(seed, INIT, table, block).random((BLOCK, width), np.float32)
        begin = max(first, block * BLOCK)
        end = min(first + count, (block + 1) * BLOCK)
        out[begin - first : end - first] = rows[begin - block * BLOCK : end - block * BLOCK]
    out *= 2 * bound
    out -= bound
    return out


def shuffled(positions: np.ndarray, total: int, seed: int, epoch: int, part: int = 0) -> np.ndarray:
    """int64: where a random permutation of range(total) sends `positions`, without building it.

    A Feistel network over the grid (a, b) with a * b >= total; the few images beyond `total` walk
    on.
    """
    a = max(1, int(np.ceil(np.sqrt(total))))
    b = -(-total // a)
    keys = stream(seed, ORDER, epoch, part).integers(1, 2**63, 6, np.uint64) | np.uint64(1)
    out = np.asarray(positions, np.uint64)
    out = _round_trip(out, np.uint64(a), np.uint64(b), keys)
    while (beyond := out >= total).any():
        out[beyond] = _round_trip(out[beyond], np.uint64(a), np.uint64(b), keys)
    return out.astype(np.int64)


def _round_trip(x: np.ndarray, a: np.uint64, b: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = x // b, x % b
    for i, key in enumerate(keys):
        if i % 2 == 0:
            left = (left + _mix(right, key)) % a
        else:
            right = (right + _mix(left, key)) % b
    return left * b + right


def _mix(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """A number below 2^40 that hardly resembles x."""
    x = (x + key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= key
    return x >> np.uint64(24)


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


class EpochOrder(Protocol):
    """What a sampler asks: the triples of a batch and the entities that may corrupt them."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    def rows(self, epoch: int, step: int) -> np.ndarray:
        """int64: which triples make this batch."""

    def entities(self, epoch: int, step: int) -> Ranges:
        """Ranges of entities from which negatives are drawn."""


@dataclass(frozen=True)
class Shuffle:
    """Every triple once per epoch, batches of `batch`, negatives from everywhere."""

    triples: int
    count: int
    """Entities."""
    batch: int
    seed: int
    window: int = WINDOW
    block: int = NEIGHBOURS

    @property
    def steps(self) -> int:
        return -(-self.triples // self.batch)

    def rows(self, epoch: int, step: int) -> np.ndarray:
        places = np.arange(step * self.batch, min((step + 1) * self.batch, self.triples))
        if self.triples <= self.window:
            return shuffled(places, self.triples, self.seed, epoch)
        out = np.empty_like(places)
        which = places // self.window
        for number in range(which[0], which[-1] + 1):
            here, start = which == number, number * self.window
            size = min(self.window, self.triples - start)
            out[here] = start + shuffled(places[here] - start, size, self.seed, epoch, number)
        return self._blocks(out, epoch)

    def _blocks(self, places: np.ndarray, epoch: int) -> np.ndarray:
        """Whole blocks in random order; what is left over stays at the end."""
        whole = self.triples // self.block
        inside = places < whole * self.block
        block, offset = np.divmod(places[inside], self.block)
        moved = shuffled(block, whole, self.seed, epoch, _BLOCKS)
        places[inside] = moved * self.block + offset
        return places

    def entities(self, epoch: int, step: int) -> Ranges:
        return ((0, self.count),)


def split_validation(graph: Graph, config: MedConfig, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation triples; a part of the training triples is held out where early
    stopping needs it.
    """
    train, valid = graph.train, np.asarray(graph.valid)
    if not len(valid) and config.validation.patience is not None:
        held = max(
            1, min(config.validation.triples, round(config.validation.fraction * len(train)))
        )
        chosen = stream(seed, HOLDOUT).choice(len(train), held, replace=False)
        keep = np.ones(len(train), bool)
        keep[chosen] = False
        return train[keep], train[np.sort(chosen)]
    if len(valid) > config.validation.triples:
        chosen = stream(seed, HOLDOUT).choice(len(valid), config.validation.triples, replace=False)
        valid = valid[np.sort(chosen)]
    return train, valid
