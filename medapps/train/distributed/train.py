"""Train together: every process its rows, the finished embedding an ordinary one.

The embedding is written by all processes into one file, each its own rows at their place, so that
`rank`, `crop`, `label` and `recommend` read it memory-mapped like any other, and no process ever
holds the whole table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import Hole, fill
from medapps.config import flat
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import REPLACE, Provenance, disk_errors
from medapps.tracking import NO_RUN
from medapps.train.checkpoint import MACHINE, Counters
from medapps.train.config import MedConfig
from medapps.train.distributed.checkpoint import load_shards, save_shards, seen, writing_together
from medapps.train.distributed.group import Group
from medapps.train.med import train_med
from medapps.train.process_group import ProcessGroup
from medapps.train.session import Session
from medapps.train.tables import Groups, group, summed

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


def train_sharded(
    group: Group,
    graph: Graph,
    config: MedConfig,
    folder: Path,
    session: Session,
    *,
    provenance: Provenance = REPLACE,
) -> Embedding:
    """Train with all processes of the group and write the embedding to `folder`; called by all."""
    check_processes(group, graph, config, session.seed, session.resume)
    check_shared(group, folder.parent)
    threads = config.hardware.threads or max(1, len(os.sched_getaffinity(0)) // group.neighbours)
    group.sent.clear()
    if group.rank > 0:
        session = replace(session, run=NO_RUN, progress=None)
    shared = Sharded(group, len(graph.entities))
    part = train_med(graph, config.changed(threads=threads), session, group=shared)
    seen = group.gather([part.metrics["peak_rss_bytes"], sum(group.sent.values())])
    metrics = part.metrics | {
        "ranks": float(group.world),
        "peak_rss_bytes": max(peak for peak, _ in seen),
        "wire_bytes": sum(sent for _, sent in seen),
    }
    return save_together(group, replace(part, metrics=metrics), folder, provenance)


def check_processes(group: Group, graph: Graph, config: MedConfig, seed: int, resume: bool) -> None:
    """Refuse processes that would not train the same thing."""
    about = {"triples": len(graph.train), "entities": len(graph.entities), "digest": graph.digest}
    group.same(about, "graph")
    plain = {key: value for key, value in flat(config.plain()).items() if key not in MACHINE}
    group.same(plain | {"seed": seed, "resume": resume}, "config")
    if len(graph.entities) < group.world:
        raise MedappsError(
            f"{len(graph.entities)} entities cannot be shared by {group.world} processes.",
            fix="Give torchrun a smaller --nproc-per-node.",
        )


def check_shared(group: Group, folder: Path) -> None:
    """Refuse a folder that is not the same one on all machines."""

    def leave_mark() -> str:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=".ranks-")
        os.close(handle)
        return str(Path(name).resolve())

    group.same({"folder": str(folder.resolve())}, "workspace")
    mark = Path(group.first(leave_mark))
    try:
        group.agree(lambda: seen(mark))
    finally:
        if group.rank == 0:
            mark.unlink()


def save_together(
    group: Group, part: Embedding, folder: Path, provenance: Provenance = REPLACE
) -> Embedding:
    """Write one embedding of which every process has its rows; loads it memory-mapped."""
    rows = Sharded(group, len(part.entity_ids))
    first, _ = rows.place(len(part.entities))
    group.agree(lambda: part.refuse_broken(first))
    provenance = provenance.of(graph=part.graph_digest)
    with writing_together(group, folder, kind="embedding", provenance=provenance) as draft:
        if group.rank == 0:
            code = "BF16" if part.entities.dtype == np.uint16 else None
            shape = (rows.rows, part.entities.shape[1])
            part.write(draft, Hole(shape, part.entities.dtype.name, code))
        group.gather(None)  # the file is there

        def put() -> None:
            with disk_errors(folder):
                fill(draft.path("vectors.safetensors"), "entities", first, part.entities)

        group.agree(put)
    return group.agree(lambda: Embedding.load(folder))
