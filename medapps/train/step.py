"""One update, without autograd: gather rows, score all prefixes, weigh, move the touched rows.

The work goes through blocks of positives small enough for the processor's cache, so that the
element-wise loss of many sub-models stays cheap. Buffers are allocated once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from medapps.model.scorer import Bounds, Scorer
from medapps.train.batches.negatives import Batch, Chunk
from medapps.train.loss.drop import apply_kept
from medapps.train.loss.med import own_answers, pairs, positives
from medapps.train.loss.regularise import add_penalty_, penalty
from medapps.train.loss.submodels import SubModels, Weights
from medapps.train.process_group import ALONE, Peers
from medapps.train.tables.bf16 import take_rows
from medapps.train.tables.optimiser import Optimiser
from medapps.train.tables.rows import group, summed

BLOCK = 2**20
"""Scores (sub-models x positives x negatives) that are worked on at a time."""
PHASES = ("sample", "gather", "score", "loss", "update")


@dataclass(frozen=True)
class Tiers:
    """The sub-models that a step trains."""

    dims: tuple[int, ...]
    bounds: Bounds
    models: SubModels


@dataclass
class Clock:
    """Seconds per phase; `mark` books the time since the last mark."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    last: float = field(default_factory=perf_counter)

    def mark(self, phase: str | None) -> None:
        now = perf_counter()
        if phase is not None:
            self.seconds[phase] += now - self.last
        self.last = now


@dataclass(frozen=True)
class Tables:
    """Both tables with their optimisers."""

    entities: Tensor
    relations: Tensor
    entity_optimiser: Optimiser
    relation_optimiser: Optimiser


@dataclass(frozen=True)
class Asked:
    """Some positives of a batch, as the losses of their negatives see them."""

    distance: Tensor  # (n, b)
    pull: Tensor  # (n, b): dL/dD so far
    of: int
    """Positives in the whole batch."""

    def part(self, start: int, stop: int) -> Asked:
        """Those from start to stop; `pull` stays shared."""
        return Asked(self.distance[:, start:stop], self.pull[:, start:stop], self.of)


class Step:
    """Does updates on the same tables again and again, reusing its buffers."""

    def __init__(
        self,
        scorer: Scorer,
        weights: Weights,
        tables: Tables,
        *,
        clock: Clock,
        peers: Peers = ALONE,
    ) -> None:
        self.scorer = scorer
        self.weights = weights
        self.tables = tables
        self.clock = clock
        self.peers = peers
        self.device = tables.entities.device
        self._buffers: dict[str, Tensor] = {}

    def __call__(
        self, batch: Batch, tiers: Tiers, lr: float, count: int, *, value: bool
    ) -> tuple[Tensor | None, Tensor]:
        """EI per sub-model (n,), None unless `value`, and ML; moves the tables."""
        clock, b = self.clock, len(batch.source)
        width, related_width, query_width = self.scorer.widths(tiers.dims[-1])
        relation_ids = torch.from_numpy(batch.relation).to(self.device)
        shared = batch.chunks[0].negatives.ndim == 1
        parts = [batch.source, batch.target, *(c.negatives.reshape(-1) for c in batch.chunks)]
        ids = torch.from_numpy(np.concatenate(parts)).to(self.device)
        groups = group(ids)
        held, places = self.peers.fetch(self.tables.entities, ids, groups, width)
        rows = self._buffer("rows", (len(ids) if shared else 2 * b, held.shape[1]))
        take_rows(held, places[: len(rows)], rows)
        related = self._buffer("related", (b, self.tables.relations.shape[1]))
        torch.index_select(self.tables.relations, 0, relation_ids, out=related)
        rows, related = rows[:, :width], related[:, :related_width]
        used, kept = apply_kept(related, batch.kept, self.scorer.rule.REALS[1])
        source, target = rows[:b], rows[b : 2 * b]
        grad = self._buffer("grad", (len(rows), width))
        clock.mark("gather")

        query = self._buffer("query", (b, query_width))
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            self.scorer.query(source[part], used[part], chunk.side, query[part])
        distance, seen = self.scorer.aligned(query, target.unsqueeze(1), tiers.bounds)
        clock.mark("score")
        near = distance[..., 0]  # (n, b)
        ei, ml, pull = positives(
            near,
            tiers.models,
            self.weights,
            of=batch.of,
            softmax=self.peers.softmax,
        )
        asked = Asked(near, pull, batch.of)
        clock.mark("loss")

        total = None
        if shared:
            grad[2 * b :].zero_()
        else:
            total = torch.zeros(len(groups.ids), width, device=self.device)
            slots = torch.searchsorted(groups.ids, ids)
        dquery = self._buffer("dquery", tuple(query.shape)).zero_()
        clock.mark("update")
        first = 2 * b
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            last = first + chunk.negatives.size
            mine = asked.part(chunk.start, chunk.stop)
            if total is None:
                ends = rows[first:last], grad[first:last]
                got = self._shared(chunk, query[part], *ends, tiers, mine, dquery[part], value)
            else:
                ends = places[first:last], slots[first:last]
                got = self._independent(
                    chunk, query[part], held, *ends, tiers, mine, dquery[part], total, value
                )
            ei, ml = ei + got[0], ml + got[1]
            first = last
        dq, dtarget = self.scorer.aligned_backward(pull.unsqueeze(-1), distance, seen, tiers.bounds)
        dquery += dq
        grad[b : 2 * b] = dtarget.squeeze(1)
        back = None
        if batch.foreign is not None:
            own, back = self._own(query, source, tiers, batch, dquery)
            ml = ml + own
        drelated = self._buffer("drelated", (b, related_width))
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            self.scorer.query_backward(
                dquery[part],
                source[part],
                used[part],
                chunk.side,
                grad[:b][part],
                drelated[part],
            )
        if kept is not None:
            drelated *= kept
        if back is not None:
            grad[:b] += back
        if self.weights.penalty:
            each = self.weights.penalty / batch.of
            for g, x in ((grad[: 2 * b], rows[: 2 * b]), (drelated, related)):
                add_penalty_(g, x, each)
                ml = ml + (penalty(x, each) if value else 0.0)
        clock.mark("score")

        if total is None:
            total = summed(grad, groups)
        else:
            total.index_add_(0, slots[: 2 * b], grad)
        tables, peers, related_groups = self.tables, self.peers, group(relation_ids)
        moved = peers.give(groups.ids, total)
        self._move(tables.entities, tables.entity_optimiser, *moved, lr, count)
        drelations = summed(drelated, related_groups)
        moved = peers.merge(related_groups.ids, drelations, len(tables.relations))
        self._move(tables.relations, tables.relation_optimiser, *moved, lr, count)
        if value:
            losses = peers.sum(torch.cat([ei, ml.reshape(1)]))
            ei, ml = losses[:-1], losses[-1]
        clock.mark("update")
        return (ei if value else None), ml

    def _move(
        self, table: Tensor, optimiser: Optimiser, ids: Tensor, grad: Tensor, lr: float, count: int
    ) -> None:
        optimiser.step(table, ids, grad, lr, count)

    def _own(
        self, query: Tensor, source: Tensor, tiers: Tiers, batch: Batch, dquery: Tensor
    ) -> tuple[Tensor, Tensor]:
        """OWN and its gradient (b, width) for the sources as answers; adds to dquery."""
        right = torch.from_numpy(batch.foreign).to(self.device)
        distance, kept = self.scorer.aligned(query, source.unsqueeze(1), tiers.bounds)
        near = distance[..., 0]  # (n, b)
        own, pull = own_answers(near, tiers.models, self.weights, right, of=batch.of)
        dq, dsource = self.scorer.aligned_backward(pull.unsqueeze(-1), distance, kept, tiers.bounds)
        dquery += dq
        return own, dsource.squeeze(1)

    def _shared(
        self,
        chunk: Chunk,
        query: Tensor,
        entity: Tensor,
        dentity: Tensor,
        tiers: Tiers,
        asked: Asked,
        dquery: Tensor,
        value: bool,
    ) -> tuple[Tensor, Tensor]:
        """Every positive of a chunk against the chunk's negatives; adds to dquery and dentity."""
        n, count = len(tiers.dims), len(entity)
        ei, ml = query.new_zeros(n), query.new_zeros(())
        for start, stop in self._blocks(len(query), n * count):
            distance, *spare = (
                self._buffer(f"pairs{i}", (n, stop - start, count)) for i in range(4)
            )
            self.scorer.pairs(query[start:stop], entity, tiers.bounds, distance)
            self.clock.mark("score")
            masked = self._masked(chunk, start, stop, count)
            buffers = spare[0], spare[1], spare[2]
            look = value and start == 0
            got = self._loss(distance, tiers, asked.part(start, stop), masked, buffers, value=look)
            if look:  # the first block stands for its chunk
                ei, ml = (x * (len(query) / stop) for x in got[:2])
            self.clock.mark("loss")
            self.scorer.pairs_backward(
                got[2],
                distance,
                query[start:stop],
                entity,
                tiers.bounds,
                dquery[start:stop],
                dentity,
            )
            self.clock.mark("score")
        return ei, ml

    def _independent(
        self,
        chunk: Chunk,
        query: Tensor,
        held: Tensor,
        places: Tensor,
        slots: Tensor,
        tiers: Tiers,
        asked: Asked,
        dquery: Tensor,
        total: Tensor,
        value: bool,
    ) -> tuple[Tensor, Tensor]:
        """Every positive against its own K negatives; adds to dquery and to the summed rows."""
        n, width, count = len(tiers.dims), tiers.bounds[-1], chunk.negatives.shape[1]
        ei, ml = query.new_zeros(n), query.new_zeros(())
        for start, stop in self._blocks(len(query), max(n, width) * count):
            part = slice(start * count, stop * count)
            entity = held[places[part]][:, :width].to(query.dtype)
            entity = entity.view(stop - start, count, width)
            distance, kept = self.scorer.aligned(query[start:stop], entity, tiers.bounds)
            distance = distance.contiguous()
            self.clock.mark("score")
            masked = self._masked(chunk, start, stop, count)
            buffers = tuple(torch.empty_like(distance) for _ in range(3))
            look = value and start == 0
            got = self._loss(distance, tiers, asked.part(start, stop), masked, buffers, value=look)
            if look:  # the first block stands for its chunk
                ei, ml = (x * (len(query) / stop) for x in got[:2])
            self.clock.mark("loss")
            dq, de = self.scorer.aligned_backward(got[2], distance, kept, tiers.bounds)
            dquery[start:stop].add_(dq)
            total.index_add_(0, slots[part], de.reshape(-1, width))
            self.clock.mark("score")
        return ei, ml

    def _loss(
        self,
        distance: Tensor,
        tiers: Tiers,
        asked: Asked,
        masked: Tensor | None,
        buffers: tuple[Tensor, ...],
        *,
        value: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """EI, ML + KD and dL/dD of the negatives of some positives; adds to asked.pull."""
        score, spare, grad = buffers
        return pairs(
            distance,
            tiers.models,
            self.weights,
            asked.of,
            masked,
            (score, spare, grad),
            value=value,
            positive=(asked.distance, asked.pull),
        )

    def _blocks(self, rows: int, scores_per_row: int) -> list[tuple[int, int]]:
        """Row ranges whose scores fit the cache; one range where weights span the chunk."""
        size = max(8, BLOCK // max(1, scores_per_row))
        if self.weights.negative_norm == "batch":
            size = max(1, rows)
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]

    def _masked(self, chunk: Chunk, start: int, stop: int, count: int) -> Tensor | None:
        first, last = np.searchsorted(chunk.masked, (start * count, stop * count))
        if first == last:
            return None
        return torch.from_numpy(chunk.masked[first:last] - start * count).to(self.device)

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A contiguous tensor of this shape from memory that is reused from step to step."""
        count = int(np.prod(shape))
        old = self._buffers.get(name)
        if old is None or old.numel() < count:
            dtype = self.tables.relations.dtype
            old = self._buffers[name] = torch.empty(count, dtype=dtype, device=self.device)
        return old[:count].view(shape)
