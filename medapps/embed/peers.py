"""Who holds the rows and the batch: one process alone, or ranks that share both.

A step asks its peers for rows and gives gradients back to whoever owns them. Alone, all of this is
nothing; `distributed` has the other implementer. So the step itself knows no ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from medapps.embed.table import Groups


class Peers(Protocol):
    """What a step needs of the processes that train together."""

    @property
    def rank(self) -> int:
        """This process, from 0."""

    @property
    def world(self) -> int:
        """How many processes there are."""

    def fetch(
        self, table: Tensor, ids: Tensor, groups: Groups, width: int
    ) -> tuple[Tensor, Tensor]:
        """A table and places in it: there are the rows `ids` (k,), at least `width` wide."""

    def give(self, ids: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Unique rows of one's own table, and their gradients summed over all ranks."""

    def merge(self, ids: Tensor, grad: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Unique rows of a table that everybody holds, and the sums of their gradients."""

    def softmax(self, exponent: Tensor) -> Tensor:
        """Softmax over the second axis, of which every rank has a part."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks; may overwrite `value`."""

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Of every flag, whether some rank raised it."""


class Alone:
    """One process that holds everything."""

    rank, world = 0, 1

    def fetch(
        self, table: Tensor, ids: Tensor, groups: Groups, width: int
    ) -> tuple[Tensor, Tensor]:
        return table, ids

    def give(self, ids: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        return ids, grad

    def merge(self, ids: Tensor, grad: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        return ids, grad

    def softmax(self, exponent: Tensor) -> Tensor:
        return torch.softmax(exponent, 1)

    def sum(self, value: Tensor) -> Tensor:
        return value

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return flags


ALONE = Alone()
