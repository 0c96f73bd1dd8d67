"""Tables of rows: large pages, start values, and equal rows brought together before an update."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from medapps.arrays import forget
from medapps.train.random_streams import start_rows
from medapps.train.tables.bf16 import as_numpy

HUGE = 64 * 2**20
"""Tables from this many bytes on ask the system for large pages."""


def blank(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Zeros; on a CPU in large pages where the system gives them, since rows are read at
    random.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if device.type != "cpu" or size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=dtype).view(shape)


def fill(table: Tensor, seed: int, which: int, size: float, *, begin: int = 0) -> Tensor:
    """Write the start values of rows from `begin` on into a table; a working file stays on disk."""
    for first in range(0, len(table), 4096):
        count = min(4096, len(table) - first)
        values = start_rows(seed, which, begin + first, count, table.shape[1], size)
        table[first : first + count] = torch.from_numpy(values)
        if hasattr(table, "mapped"):
            forget(as_numpy(table))
    return table


@dataclass(frozen=True)
class Groups:
    """Equal ids brought together: unique ids ascending, and where each one's members are."""

    ids: Tensor  # (u,)
    order: Tensor  # (k,): positions, members of one id side by side
    starts: Tensor  # (u,): where the members of an id begin in `order`


def group(ids: Tensor) -> Groups:
    """Bring equal ids (k,) together; stable, hence deterministic."""
    ordered, order = torch.sort(ids, stable=True)
    new = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    starts = new.nonzero().flatten()
    return Groups(ordered[starts], order, starts)


def summed(rows: Tensor, groups: Groups) -> Tensor:
    """(u, width): sums of the rows of each id, in a fixed order."""
    return embedding_bag(groups.order, rows, groups.starts, mode="sum")
