"""The triples of a training as its sampler wants them: in which order, and the index of known ones.

A table in memory takes the triples as they are. A table in a file takes a copy of them, also in a
file, in the order of the partitions that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medapps.arrays import forget
from medapps.graph.known_triples import KnownTriples
from medapps.train.batches.partitions import Pairs, Partitions, group_triples
from medapps.train.batches.shuffle import Order, Shuffle
from medapps.train.config import MedConfig
from medapps.train.memory import plan_mapped
from medapps.train.tables.mmap import working_file


@dataclass(frozen=True)
class Arranged:
    """Triples, their order and what is known."""

    triples: np.ndarray
    order: Order
    known: KnownTriples | None
    note: str = ""
    """What was decided because of the memory limit, for people."""


def arrange(
    train: np.ndarray,
    sizes: tuple[int, int, int],
    config: MedConfig,
    seed: int,
    folder: Path | None,
) -> Arranged:
    """Arrange int32 (n, 3) triples; `sizes` are entities, relations and the width of a row."""
    entities, relations, width = sizes
    if config.hardware.table != "mmap":
        known = KnownTriples.of(train, entities) if config.sampling.filter_known else None
        return Arranged(train, Shuffle(len(train), entities, config.sampling.batch, seed), known)
    plan = plan_mapped(entities, relations, width, len(train), config)
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
