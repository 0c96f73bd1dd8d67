"""Who holds the rows and the batch: a single process, or several that share both.

A step fetches rows from the group and gives gradients back to whoever owns them. For a single
process all of this is nothing; `distributed.train` has the group that shares its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from medapps.train.checkpoint import Counters, load_checkpoint, save_checkpoint
from medapps.train.tables import Groups

T = TypeVar("T")


class ProcessGroup:
    """The processes that train together: here a single one, which holds everything."""

    @property
    def index(self) -> int:
        """This process, from 0."""
        return 0

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1

    @property
    def neighbours(self) -> int:
        """How many of them share this machine's memory."""
        return 1

    def agree(self, work: Callable[[], T]) -> T:
        """Do something that may be refused: refused to one is refused to all."""
        return work()

    def shard(self, rows: int) -> tuple[int, int]:
        """First and last row, exclusive, that this process holds of an entity table."""
        return 0, rows

    def place(self, held: int) -> tuple[int, int]:
        """First row of the `held` rows that are here, and how many rows all processes have."""
        return 0, held

    def fetch(self, table: Tensor, ids: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """A table and places in it: there are the rows `ids` (k,)."""
        return table, ids

    def give(self, ids: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Unique rows of one's own table, and their gradients summed over all processes."""
        return ids, grad

    def merge(self, ids: Tensor, grad: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Unique rows of a table that everybody holds, and the sums of their gradients."""
        return ids, grad

    def softmax(self, exponent: Tensor) -> Tensor:
        """Softmax over the second axis, of which every process has a part."""
        return torch.softmax(exponent, 1)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes; may overwrite `value`."""
        return value

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Of every flag, whether some process raised it."""
        return flags

    def save(
        self, folder: Path, tensors: dict[str, Tensor], at: Counters, identity: dict[str, Any]
    ) -> None:
        """Replace the checkpoint in `folder` in one step."""
        save_checkpoint(folder, tensors, at, identity)

    def load(self, folder: Path, tensors: dict[str, Tensor], identity: dict[str, Any]) -> Counters:
        """Fill `tensors` from the checkpoint in `folder`; refuses the state of another training."""
        return load_checkpoint(folder, tensors, identity)


SINGLE = ProcessGroup()
