"""In which order an epoch visits the triples: at random, yet kind to memory.

Up to `WINDOW` triples any triple may follow any other. Beyond, blocks of neighbouring triples are
put into random order and only triples of one window of blocks are mixed, so that a file larger
than memory is read once per epoch in pieces of several pages. `partition.Pairs` is the order of
tables that are larger than memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from medapps.train.random_streams import shuffled

WINDOW = 2**24
"""Triples that are mixed with each other: 192 MiB."""
BLOCK = 2**10
"""Neighbouring triples that stay in one window: 12 KiB."""
_BLOCKS = 2**40
"""Part of the order's random numbers that belongs to the blocks; windows count from zero."""

Ranges = tuple[tuple[int, int], ...]


class Order(Protocol):
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
    block: int = BLOCK

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
