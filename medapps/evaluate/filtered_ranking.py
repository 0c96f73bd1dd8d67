"""Filtered link prediction of every prefix in one sweep.

For each test triple and side, the true entity is ranked among all entities that do not make a known
triple. Ties are realistic: half of the tied entities count as better. Distances come from matrix
products; whatever lies too near the true entity to be told apart in float32 is measured again
directly in float64. A score that is no number is the worst one: a true entity with such a score
ranks behind all others, and an entity whose vector is not finite never ranks before the true one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import forget
from medapps.graph.graph import KnownTriples
from medapps.model.rule import ScoreSpec
from medapps.model.scorer import Bounds, Scorer, make_scorer
from medapps.train.process_group import SINGLE, ProcessGroup
from medapps.train.random_streams import CANDIDATES, stream
from medapps.train.tables.bf16 import as_numpy, as_tensor
from medapps.train.tables.rows import group as group_ids

SIDES = ("head", "tail")
QUERIES = 512
TIE = 1e-12
"""Relative difference up to which two float64 distances are the same."""


@dataclass(frozen=True)
class Ranks:
    """Ranks of the true entities."""

    ranks: np.ndarray
    """float64 (dims, 2, triples): head side, then tail side; realistic ties."""
    dims: tuple[int, ...]
    candidates: int | None
    """None: all entities; else the size of the sample that was ranked against."""


@dataclass(frozen=True)
class Tables:
    """Tables whose prefixes `dims` score as `specs` say."""

    entities: np.ndarray | Tensor
    relations: np.ndarray | Tensor
    dims: tuple[int, ...]
    specs: tuple[ScoreSpec, ...]


def rank_tables(
    tables: Tables,
    triples: np.ndarray,
    known: KnownTriples | None,
    *,
    candidates: int | None = None,
    seed: int = 0,
    memory: int = 2**23,
    group: ProcessGroup = SINGLE,
) -> Ranks:
    """Rank int32 triples (k, 3).

    `candidates` ranks among that many sampled entities; `memory` bounds the bytes of a block of
    scores. Where other processes hold other rows of the entities, each counts among its own.
    """
    dims, specs = tables.dims, tables.specs
    sweep = _Sweep(
        make_scorer(specs[-1].scorer, specs[-1].norm),
        dims,
        _tensor(tables.entities),
        _tensor(tables.relations),
        group,
    )
    columns, total = None, group.place(len(sweep.table))[1]
    if candidates is not None and candidates < total:
        drawn = stream(seed, CANDIDATES).choice(total, candidates, replace=False)
        columns = np.sort(drawn).astype(np.int32)
    assert all(spec.scale > 0 for spec in specs), "scales are positive"
    ranks = np.empty((len(dims), 2, len(triples)))
    with torch.no_grad():
        for side, name in enumerate(SIDES):
            for first in range(0, len(triples), QUERIES):
                block = _Block(sweep, triples[first : first + QUERIES], name)
                pairs = known.pairs(*block.queries, name) if known is not None else None
                ranks[:, side, first : first + QUERIES] = block.ranks(pairs, columns, memory)
    return Ranks(ranks, dims, None if columns is None else len(columns))


@dataclass(frozen=True)
class _Sweep:
    """What all queries share."""

    scorer: Scorer
    dims: tuple[int, ...]
    table: Tensor
    related: Tensor
    group: ProcessGroup

    def fetched(self, ids: np.ndarray) -> Tensor:
        """Rows by id in the whole table."""
        wanted = torch.from_numpy(np.ascontiguousarray(ids)).long()
        held, places = self.group.fetch(self.table, wanted, group_ids(wanted))
        return held[places, : self.scorer.widths(self.dims[-1])[0]].float()


class _Block:
    """Some queries of one side."""

    def __init__(self, sweep: _Sweep, triples: np.ndarray, side: str) -> None:
        given, asked = (0, 2) if side == "tail" else (2, 0)
        self.queries, self.asked = (triples[:, given], triples[:, 1]), triples[:, asked]
        self.scorer, self.table, self.group = sweep.scorer, sweep.table, sweep.group
        self.bounds = bounds = sweep.scorer.bounds(sweep.dims)
        source = sweep.fetched(self.queries[0])
        rel = _rows(sweep.related, self.queries[1], sweep.scorer.widths(sweep.dims[-1])[1])
        self.query = self.scorer.query(source, rel, side)
        self.query64 = self.scorer.query(source.double(), rel.double(), side)
        target = sweep.fetched(self.asked).double().unsqueeze(1)
        self.true64 = self.scorer.aligned(self.query64, target, bounds)[0][..., 0]

    def ranks(
        self,
        known: tuple[np.ndarray, np.ndarray] | None,
        columns: np.ndarray | None,
        memory: int,
    ) -> np.ndarray:
        """float64 (n, queries)."""
        n, q = len(self.bounds) - 1, len(self.asked)
        drop_query, drop_answer = self._dropped(known)
        better = torch.zeros(n, q, dtype=torch.float64)
        begin, _ = self.group.place(len(self.table))
        if columns is not None:
            columns = columns[(columns >= begin) & (columns < begin + len(self.table))]
        total = len(self.table) if columns is None else len(columns)
        size = max(1, min(total, memory // (4 * n * q)))  # of the rows that are here
        out = torch.empty(n * q * size)
        for first in range(0, total, size):
            last = min(first + size, total)
            ids = np.arange(begin + first, begin + last) if columns is None else columns[first:last]
            entity = (
                self.table[first:last, : self.bounds[-1]].float()
                if columns is None
                else _rows(self.table, ids - begin, self.bounds[-1])
            )
            entity, broken = _mended(entity, self.bounds)
            distance = out[: n * q * (last - first)].view(n, q, last - first)
            self.scorer.pairs(self.query, entity, self.bounds, distance)
            low, high, lost = self._around(entity)
            if broken is not None:
                distance.masked_fill_(broken, torch.inf)
            distance[lost] = -torch.inf  # everything is nearer
            at = np.searchsorted(ids, drop_answer)
            at_safe = np.minimum(at, len(ids) - 1)
            here = ids[at_safe] == drop_answer
            distance[:, drop_query[here], at_safe[here]] = torch.inf
            better += self._count(distance, entity, low, high)
            if hasattr(self.table, "mapped"):  # pages of a file add up when they are not given back
                forget(as_numpy(self.table))
        return (1.0 + self.group.sum(better)).numpy()

    def _dropped(
        self, known: tuple[np.ndarray, np.ndarray] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(query, entity) pairs that are not ranked against: known answers and the true one."""
        own = np.arange(len(self.asked))
        if known is None:
            return own, self.asked
        return np.concatenate([own, known[0]]), np.concatenate([self.asked, known[1]])

    def _around(self, entity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, q) each: between which float32 distances an entity may be as near as the true one,
        and where the true one is no number, or too large for float32.
        """
        true = self.true64.float()
        slack = self.scorer.slack(self.query, entity, true, self.bounds)
        lost = ~(true.isfinite() & slack.isfinite())
        return (true - slack).masked_fill(lost, 0.0), (true + slack).masked_fill(lost, 0.0), lost

    def _count(self, distance: Tensor, entity: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """(n, q): nearer entities, plus half of the equally near ones."""
        sure = distance < low.unsqueeze(-1)
        count = torch.count_nonzero(sure, -1).double()
        near = (distance <= high.unsqueeze(-1)).logical_xor_(sure)  # low <= distance <= high
        where = near.nonzero()  # (k, 3): prefix, query, entity
        for piece in where.split(65536):
            which, row, column = piece.T
            exact, _ = self.scorer.aligned(
                self.query64[row], entity[column].double().unsqueeze(1), self.bounds
            )
            exact = exact[:, :, 0].gather(0, which.unsqueeze(0))[0]
            truth = self.true64[which, row]
            margin = TIE * truth.abs().clamp_min(1e-6)
            value = (exact < truth - margin).double() + 0.5 * (
                (exact - truth).abs() <= margin
            ).double()
            count.view(-1).index_add_(0, which * len(self.asked) + row, value)
        return count


def _mended(entity: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """Rows with 0 in the place of what is not finite, and which prefixes that is in, (n, 1, N)."""
    if entity.sum().isfinite():
        return entity, None
    good = entity.isfinite()
    whole = torch.stack([good[:, :end].all(1) for end in bounds[1:]])
    return entity.where(good, 0.0), ~whole.unsqueeze(1)


def _tensor(array: np.ndarray | Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    table = as_tensor(np.asarray(array))
    if isinstance(array, np.memmap):
        table.mapped = array  # type: ignore[attr-defined]
    return table


def _rows(table: Tensor, ids: np.ndarray, width: int) -> Tensor:
    return table[torch.from_numpy(np.ascontiguousarray(ids)).long(), :width].float()
