"""One model of a distillation: scores of a batch, and the way back to its rows.

A student and its teacher are both players. They look at the same positives and the same negatives;
a loss turns both models' scores into gradients, and each player that learns moves its own rows.
The arithmetic is that of the one-pass engine with a single prefix.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medapps.crop.crop import Crop
from medapps.crop.score import ScoreSpec
from medapps.model.scorer import Scorer, bounds_of, make_scorer
from medapps.train.batches.negatives import Batch
from medapps.train.build import make_tables
from medapps.train.config import MedConfig
from medapps.train.loss.drop import apply_kept
from medapps.train.loss.med import FAR
from medapps.train.loss.regularise import add_penalty_
from medapps.train.step import Tables
from medapps.train.tables.optimiser import make_optimiser
from medapps.train.tables.rows import group, summed

BLOCK = 2**24
"""Numbers gathered at a time for negatives that are not shared."""


@dataclass
class View:
    """What a player sees of one batch; kept until its gradients are known."""

    batch: Batch
    ids: Tensor
    rows: Tensor
    """(2B + shared negatives, width): sources, targets, negatives."""
    related: Tensor
    kept: Tensor | None
    """Factors of `related`, 0 where a coordinate is dropped."""
    used: Tensor
    """`related` as the queries have it."""
    query: Tensor
    seen: Any
    """What the scorer wants back."""
    positive: Tensor
    """(1, B, 1): distances of the positives."""
    negative: Tensor
    """(1, B, N): distances of the negatives, FAR where masked."""

    @property
    def source(self) -> Tensor:
        return self.rows[: len(self.query)]

    @property
    def target(self) -> Tensor:
        return self.rows[len(self.query) : 2 * len(self.query)]


class Player:
    """Tables, a score, and an optimiser for each table when the model learns."""

    def __init__(
        self,
        tables: Tables,
        spec: ScoreSpec,
        dim: int,
        scorer: Scorer,
        penalty: float = 0.0,
        *,
        drops: bool = False,
    ) -> None:
        self.tables = tables
        self.spec = spec
        self.dim = dim
        self.scorer = scorer
        self.bounds = bounds_of(scorer, (dim,))
        self.penalty = penalty
        self.drops = drops  # does without what a batch drops; a teacher does not

    def look(self, batch: Batch, masked: Tensor) -> View:
        """Distances of the positives and negatives of a batch; `masked` are flat in (B, N)."""
        device = self.tables.entities.device
        b, shared = len(batch.source), batch.chunks[0].negatives.ndim == 1
        parts = [batch.source, batch.target, *(c.negatives.reshape(-1) for c in batch.chunks)]
        ids = torch.from_numpy(np.concatenate(parts)).to(device)
        rows = self.tables.entities[ids if shared else ids[: 2 * b]]
        related = self.tables.relations[torch.from_numpy(batch.relation).to(device)]
        factors = batch.kept if self.drops else None
        used, kept = apply_kept(related, factors, self.scorer.rule.REALS[1])
        query = rows.new_empty(b, self.scorer.widths(self.dim)[2])
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            self.scorer.query(rows[:b][part], used[part], chunk.side, query[part])
        positive, seen = self.scorer.aligned(query, rows[b : 2 * b].unsqueeze(1), self.bounds)
        negative = rows.new_empty(1, b, batch.chunks[0].negatives.shape[-1])
        view = View(batch, ids, rows, related, kept, used, query, seen, positive, negative)
        for chunk, first, last in self._pieces(view):
            part = slice(chunk.start, chunk.stop)
            if shared:
                self.scorer.pairs(query[part], rows[first:last], self.bounds, negative[:, part])
                continue
            for piece, entity in self._own(view, chunk.start, chunk.stop, first):
                negative[:, piece] = self.scorer.aligned(query[piece], entity, self.bounds)[0]
        negative.view(-1)[masked] = FAR
        return view

    def scores(self, view: View) -> tuple[Tensor, Tensor]:
        """Scores of the positives (B,) and negatives (B, N)."""
        margin, scale = self.spec.margin, self.spec.scale
        return margin - scale * view.positive[0, :, 0], margin - scale * view.negative[0]

    def learn(
        self,
        view: View,
        dpositive: Tensor,
        dnegative: Tensor,
        lr: float,
        count: int,
        ends: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Move the rows by gradients of the distances, (B,) and (B, N), which are overwritten.

        `ends` are further gradients of the source and target rows, (B, width) each.
        """
        batch, b, width = view.batch, len(view.query), self.bounds[-1]
        dquery, dtarget = self.scorer.aligned_backward(
            dpositive.view(1, b, 1), view.positive, view.seen, self.bounds
        )
        grad = view.rows.new_zeros(view.rows.shape)
        grad[b : 2 * b] = dtarget.squeeze(1)
        groups = group(view.ids)
        loose = None
        if batch.chunks[0].negatives.ndim == 2:
            loose = grad.new_zeros(len(groups.ids), width)
            slots = torch.searchsorted(groups.ids, view.ids)
        for chunk, first, last in self._pieces(view):
            part = slice(chunk.start, chunk.stop)
            if loose is None:
                self.scorer.pairs_backward(
                    dnegative[None, part], view.negative[:, part], view.query[part],
                    view.rows[first:last], self.bounds, dquery[part], grad[first:last],
                )  # fmt: skip
                continue
            size = batch.chunks[0].negatives.shape[1]
            for piece, entity in self._own(view, chunk.start, chunk.stop, first):
                _, seen = self.scorer.aligned(view.query[piece], entity, self.bounds)
                dq, de = self.scorer.aligned_backward(
                    dnegative[None, piece], view.negative[:, piece], seen, self.bounds
                )
                dquery[piece] += dq
                place = slice(2 * b + piece.start * size, 2 * b + piece.stop * size)
                loose.index_add_(0, slots[place], de.reshape(-1, width))
        drelated = torch.empty_like(view.related)
        for chunk in batch.chunks:
            part = slice(chunk.start, chunk.stop)
            self.scorer.query_backward(
                dquery[part], view.source[part], view.used[part], chunk.side,
                grad[:b][part], drelated[part],
            )  # fmt: skip
        if view.kept is not None:
            drelated *= view.kept
        if self.penalty:
            add_penalty_(grad[: 2 * b], view.rows[: 2 * b], self.penalty / b)
            add_penalty_(drelated, view.related, self.penalty / b)
        if ends is not None:
            grad[:b] += ends[0]
            grad[b : 2 * b] += ends[1]
        total = summed(grad, groups) if loose is None else loose.index_add_(0, slots[: 2 * b], grad)
        related = group(torch.from_numpy(batch.relation).to(grad.device))
        self.tables.entity_optimiser.step(self.tables.entities, groups.ids, total, lr, count)
        self.tables.relation_optimiser.step(
            self.tables.relations, related.ids, summed(drelated, related), lr, count
        )

    def state(self, name: str) -> dict[str, Tensor]:
        """All tensors of the model and its optimisers, for a checkpoint."""
        tables = self.tables
        out = {f"{name}_entities": tables.entities, f"{name}_relations": tables.relations}
        for kind, optimiser in (
            ("entity", tables.entity_optimiser),
            ("relation", tables.relation_optimiser),
        ):
            out |= {f"{name}_{kind}_{key}": value for key, value in optimiser.state.items()}
        return out

    def _pieces(self, view: View):  # type: ignore[no-untyped-def]
        """(chunk, first, last): where in `ids` the negatives of each chunk stand."""
        first = 2 * len(view.query)
        for chunk in view.batch.chunks:
            yield chunk, first, first + chunk.negatives.size
            first += chunk.negatives.size

    def _own(self, view: View, start: int, stop: int, first: int):  # type: ignore[no-untyped-def]
        """(positives, their own negatives (b, K, width)), a bounded number at a time."""
        count, width = view.negative.shape[2], self.bounds[-1]
        size = max(1, BLOCK // (count * width))
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            ids = view.ids[first + (begin - start) * count : first + (end - start) * count]
            yield slice(begin, end), self.tables.entities[ids].view(end - begin, count, width)


def masked_of(batch: Batch) -> Tensor:
    """int64: flat positions in (B, N) of negatives that do not count."""
    count = batch.chunks[0].negatives.shape[-1]
    return torch.from_numpy(np.concatenate([c.masked + c.start * count for c in batch.chunks]))


def fresh(config: MedConfig, entities: int, relations: int, seed: int) -> Player:
    """A student of config.dims[-1] with the start values that a direct training would have."""
    scorer = make_scorer(config.scorer, config.norm)
    tables = make_tables(config, scorer, entities, relations, seed, torch.device("cpu"))
    spec = ScoreSpec(config.scorer, config.norm, 1.0, config.margins[-1])
    return Player(tables, spec, config.dims[-1], scorer, config.loss.penalty, drops=True)


def known(crop: Crop, config: MedConfig, *, learns: bool) -> Player:
    """A trained model as a player; one that learns works on a copy."""
    scorer = make_scorer(crop.spec.scorer, crop.spec.norm)
    assert crop.relations is not None
    with warnings.catch_warnings():  # a read-only memory map that is only read
        warnings.simplefilter("ignore", UserWarning)
        e, r = (
            torch.from_numpy(np.array(table) if learns else np.asarray(table))
            for table in (crop.entities, crop.relations)
        )
    length = config.optimiser.init_norm if config.optimiser.keep_length else None
    name = config.optimiser.name if learns else "adagrad"
    tables = Tables(
        e,
        r,
        make_optimiser(name, e, length=length),
        make_optimiser(name, r, rate=config.optimiser.relation_rate),
    )
    return Player(tables, crop.spec, crop.dim, scorer)
