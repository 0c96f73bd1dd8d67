"""The parts of one update, without autograd: gather, forward, backward, apply.

Who trains composes them: MED (med.py) goes through blocks of positives small enough for the
processor's cache, forward and backward at once; a student (baselines/distill.py) needs all scores
of both models before its loss. Buffers are allocated once and reused from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medapps.errors import MedappsError
from medapps.model.rule import Bounds, Scorer, ScoreSpec
from medapps.model.rules import make_scorer
from medapps.train.batches import Batch, Chunk
from medapps.train.config import MedConfig
from medapps.train.process_group import SINGLE, ProcessGroup
from medapps.train.tables import (
    Groups,
    Optimiser,
    blank,
    fill,
    group,
    make_optimiser,
    summed,
    take_rows,
    working_table,
)


@dataclass(frozen=True)
class Model:
    """Both tables with their optimisers; every prefix in `dims` is a sub-model."""

    scorer: Scorer
    dims: tuple[int, ...]
    specs: tuple[ScoreSpec, ...]
    """Scale and margin of each sub-model."""
    entities: Tensor
    relations: Tensor
    entity_optimiser: Optimiser
    relation_optimiser: Optimiser

    @cached_property
    def bounds(self) -> Bounds:
        """Where the segments of an entity's row end."""
        return self.scorer.bounds(self.dims)

    @cached_property
    def query_width(self) -> int:
        return self.scorer.widths(self.dims[-1])[2]

    @property
    def device(self) -> torch.device:
        return self.entities.device

    def tables(self) -> dict[str, Tensor]:
        """Both tables by name."""
        return {"entities": self.entities, "relations": self.relations}

    def state(self) -> dict[str, Tensor]:
        """The tables and the state of their optimisers, for a checkpoint."""
        out = self.tables()
        out |= {f"entity_{key}": value for key, value in self.entity_optimiser.state.items()}
        return out | {f"relation_{key}": x for key, x in self.relation_optimiser.state.items()}


def new_model(
    config: MedConfig,
    entities: int,
    relations: int,
    seed: int,
    *,
    begin: int = 0,
    folder: Path | None = None,
) -> Model:
    """Initial values and fresh optimisers, whose segments are those of the dims.

    `entities` rows of that table from `begin` on; all relations. Working files are in `folder`.
    """
    how, table = config.optimiser, config.hardware.table
    device = pick_device(config.hardware.device)
    scorer = make_scorer(config.scorer, config.norm, from_larger=config.loss.from_larger)
    cuts = [scorer.widths(dim) for dim in config.dims]
    lengths = scorer.rule.lengths(how.init_norm, config.dims[-1], config.norm)
    fresh = partial(working_table, folder) if table == "mmap" else None
    shape, kind = (entities, cuts[-1][0]), torch.bfloat16 if table == "bf16" else torch.float32
    e = fresh(shape) if fresh else blank(shape, device, kind)
    fill(e, seed, 0, lengths[0], begin=begin)
    r = fill(blank((relations, cuts[-1][1]), device), seed, 1, lengths[1])
    if scorer.rule.RELATIONS == "signs":
        r.sign_().mul_(lengths[1] / r.shape[1] ** 0.5)
    make = partial(make_optimiser, how.name, rate_power=how.rate_power)
    length = how.init_norm if how.keep_length else None
    return Model(
        scorer,
        config.dims,
        config.specs,
        e,
        r,
        make(e, (0, *(cut[0] for cut in cuts)), length=length, seed=seed, fresh=fresh),
        make(r, (0, *(cut[1] for cut in cuts)), rate=how.relation_rate),
    )


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" takes CUDA where it works."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise MedappsError("No CUDA device is usable here.", fix="Use --device cpu.")
    return torch.device(name)


PHASES = ("sample", "gather", "score", "loss", "update")


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


@dataclass
class BatchScores:
    """One batch as one model sees it: rows, queries, distances, and the gradients of all three."""

    batch: Batch
    model: Model
    groups: Groups
    """Entities of the batch, each once."""
    places: Tensor
    """Where the entities (sources, targets, negatives) stand in `held`."""
    held: Tensor
    """A table with all rows that the batch needs."""
    slots: Tensor | None
    """Where they stand among `groups.ids`; None where negatives are shared."""
    rows: Tensor
    """(2B + shared negatives, width): sources, targets, negatives."""
    related: Tensor
    """(B, relation width)."""
    used: Tensor
    """`related` as the queries have it."""
    kept: Tensor | None
    """Factors of `related`, 0 where a coordinate is dropped."""
    query: Tensor
    positive: Tensor
    """(n, B, 1): distances of the positives."""
    saved: Any
    """What the scorer wants back with their gradients."""
    drows: Tensor
    dquery: Tensor
    drelated: Tensor
    total: Tensor | None
    """Gradients of `groups.ids` where every positive has negatives of its own."""
    negative: Tensor | None = None
    """(n, B, N): distances of all negatives, where they are kept."""

    @property
    def source(self) -> Tensor:
        return self.rows[: len(self.query)]

    @property
    def target(self) -> Tensor:
        return self.rows[len(self.query) : 2 * len(self.query)]

    def scores(self) -> tuple[Tensor, Tensor]:
        """Scores of the positives (B,) and all negatives (B, N) by the full size."""
        assert self.negative is not None
        spec = self.model.specs[-1]
        positive, negative = self.positive[-1, :, 0], self.negative[-1]
        return spec.margin - spec.scale * positive, spec.margin - spec.scale * negative


@dataclass(frozen=True)
class Block:
    """Some positives of a chunk, and where their negatives stand in the batch."""

    chunk: Chunk
    start: int
    """First positive, counted from the chunk's first."""
    stop: int
    at: slice

    @property
    def part(self) -> slice:
        """The positives in the batch."""
        return slice(self.chunk.start + self.start, self.chunk.start + self.stop)

    def masked(self, device: torch.device) -> Tensor | None:
        """int64: flat positions in (positives, N) that are no negatives; None if there are none."""
        count = self.chunk.negatives.shape[-1]
        ends = self.start * count, self.stop * count
        first, last = np.searchsorted(self.chunk.masked, ends)
        if first == last:
            return None
        return torch.from_numpy(self.chunk.masked[first:last] - ends[0]).to(device)


class Engine:
    """Gathers, scores and moves the rows of one model again and again."""

    def __init__(self, model: Model, *, group: ProcessGroup = SINGLE) -> None:
        self.model = model
        self.group = group
        self.clock = Clock()
        self._buffers: dict[str, Tensor] = {}

    def forward(self, batch: Batch, *, drop: bool = True) -> BatchScores:
        """Rows, queries and distances of the positives; `drop` leaves out what the batch drops."""
        scores = self._gather(batch, drop)
        self.clock.mark("gather")
        rule, scorer = self.model.scorer.rule, self.model.scorer
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            rule.query(scores.source[part], scores.used[part], chunk.side, scores.query[part])
        target = scores.target.unsqueeze(1)
        scores.positive, scores.saved = scorer.aligned(scores.query, target, self.model.bounds)
        self.clock.mark("score")
        return scores

    def _gather(self, batch: Batch, drop: bool) -> BatchScores:
        model, b = self.model, len(batch.source)
        shared = batch.chunks[0].negatives.ndim == 1
        parts = [batch.source, batch.target, *(c.negatives.reshape(-1) for c in batch.chunks)]
        ids = torch.from_numpy(np.concatenate(parts)).to(model.device)
        groups = group(ids)
        held, places = self.group.fetch(model.entities, ids, groups)
        rows = self.buffer("rows", (len(ids) if shared else 2 * b, held.shape[1]))
        take_rows(held, places[: len(rows)], rows)
        related = self.buffer("related", (b, model.relations.shape[1]))
        relation_ids = torch.from_numpy(batch.relation).to(model.device)
        torch.index_select(model.relations, 0, relation_ids, out=related)
        used, kept = related, None
        if drop and batch.kept is not None:
            kept = torch.from_numpy(batch.kept).to(model.device)
            kept = kept.repeat_interleave(related.shape[1] // kept.shape[1], 1)
            used = related * kept
        query = self.buffer("query", (b, model.query_width))
        return BatchScores(
            batch=batch,
            model=model,
            groups=groups,
            places=places,
            held=held,
            slots=None if shared else torch.searchsorted(groups.ids, ids),
            rows=rows,
            related=related,
            used=used,
            kept=kept,
            query=query,
            positive=query,  # until it is measured
            saved=None,
            drows=self.buffer("drows", tuple(rows.shape)),
            dquery=self.buffer("dquery", tuple(query.shape)),
            drelated=self.buffer("drelated", tuple(related.shape)),
            total=None,
        )

    def blocks(self, scores: BatchScores, positives: int) -> Iterator[Block]:
        """Every positive with its negatives, at most `positives` of a chunk at a time."""
        first = 2 * len(scores.query)
        for chunk in scores.batch.chunks:
            last, size = first + chunk.negatives.size, chunk.stop - chunk.start
            for start in range(0, size, max(1, positives)):
                stop, at = min(start + positives, size), slice(first, last)
                if scores.slots is not None:
                    count = chunk.negatives.shape[1]
                    at = slice(first + start * count, first + stop * count)
                yield Block(chunk, start, stop, at)
            first = last

    def score(self, scores: BatchScores, block: Block, out: Tensor) -> tuple[Tensor, Any]:
        """Distances (n, b, N) of a block, in `out` or a tensor of their own, and what to keep."""
        scorer, bounds, query = self.model.scorer, self.model.bounds, scores.query[block.part]
        if scores.slots is None:
            return scorer.pairs(query, scores.rows[block.at], bounds, out), None
        entity = scores.held[scores.places[block.at]].to(query.dtype)
        entity = entity.view(len(query), -1, entity.shape[1])
        distance, saved = scorer.aligned(query, entity, bounds)
        return distance.contiguous(), saved

    def start_backward(self, scores: BatchScores) -> None:
        """Gradients of queries and negatives are zero."""
        scores.dquery.zero_()
        if scores.slots is None:
            scores.drows[2 * len(scores.query) :].zero_()
        else:
            width = scores.rows.shape[1]
            scores.total = scores.rows.new_zeros(len(scores.groups.ids), width)

    def backward(
        self, scores: BatchScores, block: Block, grad: Tensor, distance: Tensor, saved: Any
    ) -> None:
        """Add the gradients of a block's queries and negatives from those of its distances."""
        scorer, bounds, dquery = self.model.scorer, self.model.bounds, scores.dquery[block.part]
        if scores.slots is None:
            ends = scores.query[block.part], scores.rows[block.at]
            scorer.pairs_backward(grad, distance, ends, bounds, (dquery, scores.drows[block.at]))
            return
        assert scores.total is not None
        dq, de = scorer.aligned_backward(grad, distance, saved, bounds)
        dquery.add_(dq)
        scores.total.index_add_(0, scores.slots[block.at], de.reshape(-1, de.shape[-1]))

    def backward_positives(self, scores: BatchScores, grad: Tensor) -> None:
        """Add the gradients of queries, write those of targets, from dL/dD (n, B)."""
        dquery, dtarget = self.model.scorer.aligned_backward(
            grad.unsqueeze(-1), scores.positive, scores.saved, self.model.bounds
        )
        scores.dquery += dquery
        scores.drows[len(scores.query) : 2 * len(scores.query)] = dtarget.squeeze(1)

    def backward_queries(self, scores: BatchScores) -> None:
        """Write the gradients of sources and relations from those of the queries."""
        dsource = scores.drows[: len(scores.query)]
        for chunk in scores.batch.chunks:
            part = slice(chunk.start, chunk.stop)
            ends = scores.source[part], scores.used[part]
            grads = dsource[part], scores.drelated[part]
            self.model.scorer.rule.query_backward(scores.dquery[part], ends, chunk.side, grads)
        if scores.kept is not None:
            scores.drelated *= scores.kept

    def penalise(self, scores: BatchScores, weight: float, *, value: bool) -> Tensor | float:
        """Add the gradient of N3, weight * |x|^3 of the rows of every positive; its value, if asked
        for. It belongs to coordinates, not to sub-models: it counts once whatever their number.
        """
        each, b = weight / scores.batch.of, len(scores.query)
        total: Tensor | float = 0.0
        for grad, rows in (
            (scores.drows[: 2 * b], scores.rows[: 2 * b]),
            (scores.drelated, scores.related),
        ):
            grad.addcmul_(rows, rows.abs(), value=3 * each)
            if value:
                total = total + rows.abs().pow_(3).sum() * each
        return total

    def apply(self, scores: BatchScores, lr: float, count: int) -> None:
        """Sum the gradients of equal rows, send them to their owners, and move both tables."""
        model, groups = self.model, scores.groups
        if scores.total is None or scores.slots is None:
            total = summed(scores.drows, groups)
        else:
            total = scores.total.index_add_(0, scores.slots[: len(scores.rows)], scores.drows)
        ids, total = self.group.give(groups.ids, total)
        model.entity_optimiser.step(model.entities, ids, total, lr, count)
        groups = group(torch.from_numpy(scores.batch.relation).to(model.device))
        total = summed(scores.drelated, groups)
        ids, total = self.group.merge(groups.ids, total, len(model.relations))
        model.relation_optimiser.step(model.relations, ids, total, lr, count)

    def buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A contiguous tensor of this shape from memory that is reused from step to step."""
        count = int(np.prod(shape))
        old = self._buffers.get(name)
        if old is None or old.numel() < count:
            dtype = self.model.relations.dtype
            old = self._buffers[name] = torch.empty(count, dtype=dtype, device=self.model.device)
        return old[:count].view(shape)
