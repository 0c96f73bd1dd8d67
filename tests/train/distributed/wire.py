"""What travels over the wire in a step, worked out from the ids alone.

With W ranks, let o be the distinct rows that a rank needs and others own, a the rows that others
ask of it, w the width of an entity row, v of a relation row, m the number of relations:

    counts     8 (W - 1)                       how many rows it wants of each
    ids        4 o                             which ones
    rows       4 w a                           (2 w a from a bfloat16 table)
    gradients  4 w o
    relations  2 (W - 1)/W * 4 m (v + 1)       a ring all-reduce; the column says what was touched
    flags      2 (W - 1)/W * 8                 stop? save a checkpoint?

Over all ranks the sums of o and of a are equal. Steps whose loss is looked at also sum n + 1
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medapps.train.batches import Batch


def sent_bytes(
    parts: Sequence[Batch],
    entities: int,
    relations: int,
    *,
    width: int,
    relation_width: int,
    number: int = 4,
) -> list[dict[str, float]]:
    """Bytes that each rank sends to others in the step of a batch in these parts, by purpose.

    `number` is the size of a number in the entity table.
    """
    world = len(parts)
    block = -(-entities // world)
    wants = np.zeros((world, world), np.int64)  # rank, owner
    for rank, part in enumerate(parts):
        ends = [part.source, part.target, *(chunk.negatives.reshape(-1) for chunk in part.chunks)]
        wants[rank] = np.bincount(np.unique(np.concatenate(ends)) // block, minlength=world)
    np.fill_diagonal(wants, 0)
    ring = 2 * (world - 1) / world
    return [
        {
            "counts": 8.0 * (world - 1),
            "ids": 4.0 * wants[rank].sum(),
            "rows": float(number) * width * wants[:, rank].sum(),
            "gradients": 4.0 * width * wants[rank].sum(),
            "relations": ring * 4 * relations * (relation_width + 1),
            "flags": ring * 8,
        }
        for rank in range(world)
    ]
