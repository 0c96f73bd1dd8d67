"""A process group that shares one entity table: each holds a block of rows, and all relations.

A step asks the owners for the rows that it needs and sends them the gradients back; an owner adds
up what arrives in the order of processes and moves its rows. Relations are held by all: their
gradients are summed over all processes, with a column that says which rows anybody touched, and
every process makes the same move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from medapps.train.checkpoint import Counters
from medapps.train.distributed.checkpoint import load_shards, save_shards
from medapps.train.distributed.group import Group
from medapps.train.process_group import ProcessGroup
from medapps.train.tables.rows import Groups, group, summed

T = TypeVar("T")


@dataclass(frozen=True)
class Route:
    """Who asked whom for which rows, kept until the gradients go back the same way."""

    give: list[int]
    """How many rows each process asked of this one."""
    take: list[int]
    """How many rows this process asked of each."""
    asked: Tensor
    """Rows of the own block that were asked for, by process."""


@dataclass
class Sharded(ProcessGroup):
    """One process of a group that shares a table of `rows` rows in blocks (DTensor's Shard(0))."""

    group: Group
    rows: int
    route: Route | None = field(default=None, repr=False)

    @property
    def index(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.world

    @property
    def neighbours(self) -> int:
        return self.group.neighbours

    @property
    def block(self) -> int:
        """Rows of every process but the last ones."""
        return -(-self.rows // self.size)

    def agree(self, work: Callable[[], T]) -> T:
        return self.group.agree(work)

    def shard(self, rows: int) -> tuple[int, int]:
        assert rows == self.rows, (rows, self.rows)
        return self._first(self.index), self._first(self.index + 1)

    def place(self, held: int) -> tuple[int, int]:
        first, last = self.shard(self.rows)
        assert held == last - first, (held, first, last)
        return first, self.rows

    def _first(self, rank: int) -> int:
        return min(rank * self.block, self.rows)

    def fetch(self, table: Tensor, ids: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        wanted = groups.ids  # ascending, hence by owner
        bounds = [self._first(rank) for rank in range(1, self.size)]
        cuts = torch.searchsorted(wanted, torch.tensor(bounds, dtype=wanted.dtype).to(wanted))
        ends = [0, *cuts.tolist(), len(wanted)]
        take = [b - a for a, b in pairwise(ends)]
        ones = [1] * self.size
        counts = torch.tensor(take, device=wanted.device)
        give = self.group.exchange("counts", counts, ones, ones).tolist()
        asked = self.group.exchange("ids", wanted, take, give) - self._first(self.index)
        self.route = Route(give, take, asked)
        rows = self.group.exchange("rows", table[asked], give, take)
        return rows, torch.searchsorted(wanted, ids)

    def give(self, ids: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        assert self.route is not None and len(ids) == sum(self.route.take), "fetch comes first"
        grad = self.group.exchange("gradients", grad, self.route.take, self.route.give)
        groups = group(self.route.asked)
        return groups.ids, summed(grad, groups)

    def merge(self, ids: Tensor, grad: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        width = grad.shape[1]
        dense = grad.new_zeros(rows, width + 1)
        dense[ids] = torch.nn.functional.pad(grad, (0, 1), value=1.0)
        self.group.reduce("relations", dense)
        touched = dense[:, width].nonzero().flatten()
        return touched, dense[touched, :width]

    def softmax(self, exponent: Tensor) -> Tensor:
        if self.size == 1:
            return torch.softmax(exponent, 1)
        highest = exponent.new_full((len(exponent), 1), -torch.inf)
        if exponent.shape[1]:
            highest = exponent.amax(1, keepdim=True)
        power = torch.exp(exponent - self.group.reduce("softmax", highest, largest=True))
        return power / self.group.reduce("softmax", power.sum(1, keepdim=True))

    def sum(self, value: Tensor) -> Tensor:
        return self.group.reduce("sums", value)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        raised = torch.tensor(flags, dtype=torch.int32)
        return tuple(bool(flag) for flag in self.group.reduce("flags", raised, largest=True))

    def save(
        self, folder: Path, tensors: dict[str, Tensor], at: Counters, identity: dict[str, Any]
    ) -> None:
        save_shards(self.group, self.rows, folder, tensors, at, identity)

    def load(self, folder: Path, tensors: dict[str, Tensor], identity: dict[str, Any]) -> Counters:
        return load_shards(self.group, self.rows, folder, tensors, identity)
