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
from medapps.crop.score import ScoreSpec
from medapps.graph.graph import KnownTriples
from medapps.model.scorer import Bounds, bounds_of, make_scorer
from medapps.train.process_group import ALONE, Peers
from medapps.train.random_streams import CANDIDATES, stream
from medapps.train.tables.bf16 import as_numpy, as_tensor
from medapps.train.tables.rows import group

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


def rank_tables(
    entities: np.ndarray | Tensor,
    relations: np.ndarray | Tensor,
    dims: tuple[int, ...],
    specs: tuple[ScoreSpec, ...],
    triples: np.ndarray,
    known: KnownTriples | None,
    *,
    candidates: int | None = None,
    seed: int = 0,
    memory: int = 2**23,
    peers: Peers = ALONE,
) -> Ranks:
    """Rank int32 triples (k, 3) with tables whose prefixes `dims` score as `specs` say.

    `candidates` ranks among that many sampled entities; `memory` bounds the bytes of a block of
    scores. Where peers hold other rows of `entities`, each counts among its own.
    """
    scorer = make_scorer(specs[-1].scorer, specs[-1].norm)
    table, related = _tensor(entities), _tensor(relations)
    columns, total = None, peers.place(len(table))[1]
    if candidates is not None and candidates < total:
        drawn = stream(seed, CANDIDATES).choice(total, candidates, replace=False)
        columns = np.sort(drawn).astype(np.int32)
    sign = torch.tensor([1.0 if spec.scale > 0 else -1.0 for spec in specs])
    assert (sign > 0).all(), "scales are positive"
    ranks = np.empty((len(dims), 2, len(triples)))
    with torch.no_grad():
        for side, name in enumerate(SIDES):
            for first in range(0, len(triples), QUERIES):
                part = triples[first : first + QUERIES]
                given, asked = (
                    (part[:, 0], part[:, 2]) if name == "tail" else (part[:, 2], part[:, 0])
                )
                block = _Block(scorer, dims, table, related, given, part[:, 1], asked, name, peers)
                pairs = known.pairs(given, part[:, 1], name) if known is not None else None
                ranks[:, side, first : first + QUERIES] = block.ranks(pairs, columns, memory)
    return Ranks(ranks, dims, None if columns is None else len(columns))


class _Block:
    """Some queries of one side."""

    def __init__(  # type: ignore[no-untyped-def]
        self, scorer, dims, table, related, given, relation, asked, side, peers
    ) -> None:
        bounds, related_width = bounds_of(scorer, dims), scorer.widths(dims[-1])[1]
        self.scorer, self.bounds, self.table, self.asked = scorer, bounds, table, asked
        self.peers = peers
        source = _fetched(table, given, bounds[-1], peers)
        rel = _rows(related, relation, related_width)
        self.query = scorer.query(source, rel, side)
        self.query64 = scorer.query(source.double(), rel.double(), side)
        target = _fetched(table, asked, bounds[-1], peers)
        self.true64 = scorer.aligned(self.query64, target.double().unsqueeze(1), bounds)[0][..., 0]

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
        begin, _ = self.peers.place(len(self.table))
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
        return (1.0 + self.peers.sum(better)).numpy()

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
        slack = self.scorer.kernel.slack(self.query, entity, true, self.bounds)
        lost = ~(true.isfinite() & slack.isfinite())
        return (true - slack).masked_fill(lost, 0.0), (true + slack).masked_fill(lost, 0.0), lost

    def _count(self, distance: Tensor, entity: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """(n, q): nearer entities, plus half of the equally near ones."""
        sure = distance < low.unsqueeze(-1)
        count = torch.count_nonzero(sure, -1).double()
        near = (distance <= high.unsqueeze(-1)).logical_xor_(sure)  # low <= distance <= high
        where = near.nonzero()  # (k, 3): prefix, query, entity
        for piece in where.split(65536):
            tier, row, column = piece.T
            exact, _ = self.scorer.aligned(
                self.query64[row], entity[column].double().unsqueeze(1), self.bounds
            )
            exact = exact[:, :, 0].gather(0, tier.unsqueeze(0))[0]
            truth = self.true64[tier, row]
            margin = TIE * truth.abs().clamp_min(1e-6)
            value = (exact < truth - margin).double() + 0.5 * (
                (exact - truth).abs() <= margin
            ).double()
            count.view(-1).index_add_(0, tier * len(self.asked) + row, value)
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


def _fetched(table: Tensor, ids: np.ndarray, width: int, peers: Peers) -> Tensor:
    """Rows by id in the whole table."""
    wanted = torch.from_numpy(np.ascontiguousarray(ids)).long()
    held, places = peers.fetch(table, wanted, group(wanted), width)
    return held[places, :width].float()


def _rows(table: Tensor, ids: np.ndarray, width: int) -> Tensor:
    return table[torch.from_numpy(np.ascontiguousarray(ids)).long(), :width].float()
