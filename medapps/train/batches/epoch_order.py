"""The triples of a training as its sampler wants them: which ones, and in which order.

A table in memory takes the triples as they are. Up to `WINDOW` of them any triple may follow any
other; beyond, blocks of neighbouring triples are put into random order and only triples of one
window of blocks are mixed, so that a file larger than memory is read once per epoch in pieces of
several pages. A table in a file takes a copy of the triples, also in a file, in the order of the
partitions that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from medapps.arrays import forget
from medapps.graph.graph import Graph
from medapps.graph.known_triples import KnownTriples
from medapps.train.batches.partitions import Pairs, Partitions, Ranges, group_triples
from medapps.train.config import MedConfig
from medapps.train.memory import Sizes, plan_mapped
from medapps.train.random_streams import HOLDOUT, shuffled, stream
from medapps.train.tables.mmap import working_file

WINDOW = 2**24
"""Triples that are mixed with each other: 192 MiB."""
BLOCK = 2**10
"""Neighbouring triples that stay in one window: 12 KiB."""
_BLOCKS = 2**40
"""Part of the order's random numbers that belongs to the blocks; windows count from zero."""


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


@dataclass(frozen=True)
class Arranged:
    """Triples, their order and what is known."""

    triples: np.ndarray
    order: EpochOrder
    known: KnownTriples | None
    note: str = ""
    """What was decided because of the memory limit, for people."""


def arrange(train: np.ndarray, sizes: Sizes, seed: int, folder: Path | None) -> Arranged:
    """Arrange int32 (n, 3) triples; a copy of them in a file is in `folder`."""
    config, entities = sizes.config, sizes.entities
    if config.hardware.table != "mmap":
        known = KnownTriples.of(train, entities) if config.sampling.filter_known else None
        return Arranged(train, Shuffle(len(train), entities, config.sampling.batch, seed), known)
    plan = plan_mapped(sizes)
    known = KnownTriples.of(train, entities) if plan.filter_known else None
    parts = Partitions(entities, plan.partitions)
    grouped = working_file(folder, train.shape, "int32")
    order = Pairs(parts, group_triples(train, parts, grouped), config.sampling.batch, seed)
    forget(train)
    note = "The table is in a file, all of it in memory."
    if plan.partitions > 1:
        note = f"The table is in a file: {plan.partitions} partitions of {parts.size:,} rows, "
        note += "two in memory."
    if config.sampling.filter_known and not plan.filter_known:
        note += " Negatives that are training triples are not left out: the index does not fit."
    return Arranged(grouped, order, known, note)
