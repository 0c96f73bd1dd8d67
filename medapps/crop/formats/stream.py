"""A crop written in blocks of rows, since it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from medapps.arrays import PIECE, forget
from medapps.crop.quantize import quantize, refuse_broken
from medapps.graph.ids import IdMap

if TYPE_CHECKING:
    from medapps.crop.crop import Crop

BLOCK_BYTES = 2**20
"""float32 bytes per block: stays in the cache, yet large beside the cost of a call."""


@dataclass(frozen=True)
class CropStream:
    """Some rows of a crop, in the dtype in which they will be stored."""

    source: Crop
    dtype: str
    form: str = "safetensors"
    rows: np.ndarray | None = None
    """int32, ascending: the rows to keep; None keeps all."""
    block_bytes: int = BLOCK_BYTES
    entity_ids: IdMap = field(init=False)
    users: np.ndarray | None = field(init=False)
    """int32, ascending: which of the kept rows are users; None when all are."""

    def __post_init__(self) -> None:
        source, rows = self.source, self.rows
        ids = source.entity_ids if rows is None else source.entity_ids.subset(rows)
        users = source.users if rows is None else _positions(source.users, rows)
        object.__setattr__(self, "entity_ids", ids)
        object.__setattr__(self, "users", None if len(users) == len(ids) else users)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and numbers per row."""
        return len(self.entity_ids), self.source.width

    def blocks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray | None]]:
        """Consecutive (rows, vectors, scale of int8 rows), each a view or a copy of one block."""
        count, width = self.shape
        step = max(1, self.block_bytes // (4 * max(1, width)))
        held = 0
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            yield part, *self._encoded(part)
            held += (part.stop - part.start) * self.source.entities.strides[0]
            if held > PIECE:  # a mapped source leaves nothing behind in memory
                forget(self.source.entities)
                held = 0

    def _encoded(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        source = self.source
        picked = part if self.rows is None else self.rows[part]
        if source.dtype == "int8" and self.dtype == "int8":  # already steps: do not round twice
            assert source.scale is not None
            return np.asarray(source.entities[picked]), np.asarray(source.scale[picked])
        vectors = source.rows(picked)
        refuse_broken(vectors, lambda row: self.entity_ids.names(np.array([part.start + row]))[0])
        return quantize(vectors, self.dtype)


def _positions(users: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int32: where in `rows` the users stand; both ascending."""
    if not len(users):
        return np.empty(0, np.int32)
    at = np.minimum(np.searchsorted(users, rows), len(users) - 1)
    return np.flatnonzero(users[at] == rows).astype(np.int32)
