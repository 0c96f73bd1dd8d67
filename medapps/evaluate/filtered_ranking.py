"""Filtered link prediction of every prefix in one sweep.

For each test triple and side, the true entity is ranked among all entities that do not make a known
triple. Ties are realistic: half of the tied entities count as better. Distances come from matrix
products; whatever lies too near the true entity to be told apart in float32 is measured again
directly in float64. A score that is no number is the worst one: a true entity with such a score
ranks behind all others, and an entity whose vector is not finite never ranks before the true one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import forget
from medapps.graph.known_triples import KnownTriples, among, first_at_least, flat
from medapps.model.rule import Bounds, Scorer, ScoreSpec
from medapps.model.rules import make_scorer
from medapps.train.order import CANDIDATES, stream
from medapps.train.process_group import SINGLE, ProcessGroup
from medapps.train.tables import as_numpy, as_tensor
from medapps.train.tables import group as group_ids

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
    dims, specs, entities = tables.dims, tables.specs, _tensor(tables.entities)
    begin, total = group.place(len(entities))
    columns = None
    if candidates is not None and candidates < total:
        drawn = stream(seed, CANDIDATES).choice(total, candidates, replace=False)
        columns = np.sort(drawn).astype(np.int32)
    assert all(spec.scale > 0 for spec in specs), "scales are positive"
    scorer, related = make_scorer(specs[-1].scorer, specs[-1].norm), _tensor(tables.relations)
    sweep = _Sweep(scorer, scorer.bounds(dims), entities, related, begin, columns, known, group)
    ranks = np.empty((len(dims), 2, len(triples)))
    with torch.no_grad():
        for side, name in enumerate(SIDES):
            for first in range(0, len(triples), QUERIES):
                block = _Block(sweep, triples[first : first + QUERIES], name)
                ranks[:, side, first : first + QUERIES] = block.ranks(memory)
    return Ranks(ranks, dims, None if columns is None else len(columns))


@dataclass(frozen=True)
class _Sweep:
    """What all queries share."""

    scorer: Scorer
    bounds: Bounds
    table: Tensor
    related: Tensor
    begin: int
    """The entity of the table's first row."""
    columns: np.ndarray | None
    """int32, ascending: the entities of a sample."""
    known: KnownTriples | None
    group: ProcessGroup

    def fetched(self, ids: np.ndarray) -> Tensor:
        """Rows by id in the whole table."""
        wanted = torch.from_numpy(np.ascontiguousarray(ids)).long()
        held, places = self.group.fetch(self.table, wanted, group_ids(wanted))
        return held[places, : self.bounds[-1]].float()

    def candidates(self, size: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Ids, ascending, and rows of the entities that are here, `size` at a time."""
        begin, columns = self.begin, self.columns
        if columns is None:
            for start in range(0, len(self.table), size):
                rows = self.table[start : start + size, : self.bounds[-1]].float()
                yield np.arange(begin + start, begin + start + len(rows)), rows
            return
        columns = columns[(columns >= begin) & (columns < begin + len(self.table))]
        for start in range(0, len(columns), size):
            ids = columns[start : start + size]
            yield ids, _rows(self.table, ids - begin, self.bounds[-1])


class _Block:
    """Some queries of one side."""

    def __init__(self, sweep: _Sweep, triples: np.ndarray, side: str) -> None:
        given, asked = (0, 2) if side == "tail" else (2, 0)
        ends, self.asked, self.sweep = (triples[:, given], triples[:, 1]), triples[:, asked], sweep
        self.scorer, self.bounds = sweep.scorer, sweep.bounds
        self.known = sweep.known.spans(*ends, side) if sweep.known is not None else None
        width = self.bounds[-1] // self.scorer.rule.REALS[0] * self.scorer.rule.REALS[1]
        source, rel = sweep.fetched(ends[0]), _rows(sweep.related, ends[1], width)
        self.query = self.scorer.query(source, rel, side)
        self.query64 = self.scorer.query(source.double(), rel.double(), side)
        target = sweep.fetched(self.asked).double().unsqueeze(1)
        self.true64 = self.scorer.aligned(self.query64, target, self.bounds)[0][..., 0]

    def ranks(self, memory: int) -> np.ndarray:
        """float64 (n, queries)."""
        sweep, n, q = self.sweep, len(self.bounds) - 1, len(self.asked)
        better = torch.zeros(n, q, dtype=torch.float64)
        total = len(sweep.table) if sweep.columns is None else len(sweep.columns)
        size = max(1, min(total, memory // (4 * n * q)))
        out = torch.empty(n * q * size)
        for ids, rows in sweep.candidates(size):
            entity, broken = _mended(rows, self.bounds)
            distance = out[: n * q * len(ids)].view(n, q, len(ids))
            self.scorer.pairs(self.query, entity, self.bounds, distance)
            low, high, lost = self._around(entity)
            if broken is not None:
                distance.masked_fill_(broken, torch.inf)
            distance[lost] = -torch.inf  # everything is nearer
            self._leave_out(distance, ids)
            better += self._count(distance, entity, low, high)
            if hasattr(sweep.table, "mapped"):  # pages of a file add up if they are not given back
                forget(as_numpy(sweep.table))
        return (1.0 + sweep.group.sum(better)).numpy()

    def _leave_out(self, distance: Tensor, ids: np.ndarray) -> None:
        """Known answers and the true one are infinitely far; takes memory as `distance` does."""
        at = np.minimum(np.searchsorted(ids, self.asked), len(ids) - 1)
        own = np.flatnonzero(ids[at] == self.asked)
        distance[:, own, at[own]] = torch.inf
        if self.known is None:
            return
        answers, starts, stops = self.known
        low = first_at_least(answers, starts, stops, ids[0])
        high = first_at_least(answers, low, stops, ids[-1] + 1)
        if (high - low).sum() > distance[0].numel():  # a sample leaves most answers of a hub out
            wanted = np.broadcast_to(ids, distance.shape[1:])
            distance.masked_fill_(torch.from_numpy(among(answers, low, high, wanted)), torch.inf)
            return
        query, answer = flat(answers, low, high)
        at = np.searchsorted(ids, answer)
        here = ids[at] == answer
        distance[:, query[here], at[here]] = torch.inf

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
