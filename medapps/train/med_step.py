"""One update of MED: the loss of all sub-models over the parts of a step.

The loss and its gradient are worked out block by block, so that the element-wise work of many
sub-models stays in the processor's cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from medapps.train.batches.negatives import Batch
from medapps.train.loss.med import PositiveSlice, own_answers, pairs, positives
from medapps.train.loss.submodels import SubModels, Weights
from medapps.train.step import BatchScores, Engine

BLOCK = 2**20
"""Scores (sub-models x positives x negatives) that are worked on at a time."""


class MedStep:
    """Does updates of all sub-models on the tables of one engine."""

    def __init__(self, engine: Engine, weights: Weights) -> None:
        self.engine = engine
        self.weights = weights

    def __call__(
        self, batch: Batch, models: SubModels, lr: float, count: int, *, value: bool
    ) -> tuple[Tensor | None, Tensor]:
        """EI per sub-model (n,), None unless `value`, and the other losses; moves the tables."""
        engine, clock = self.engine, self.engine.clock
        scores = engine.forward(batch)
        ei, ml, grad = positives(
            scores.positive[..., 0], models, self.weights, of=batch.of, softmax=engine.group.softmax
        )
        clock.mark("loss")
        engine.start_backward(scores)
        clock.mark("update")
        near = PositiveSlice(scores.positive[..., 0], grad, batch.of)
        ei, ml = self._negatives(scores, models, near, (ei, ml), value=value)
        engine.backward_positives(scores, grad)
        own = self._own_answers(scores, models) if batch.foreign is not None else None
        engine.backward_queries(scores)
        if own is not None:
            ml = ml + own[0]
            scores.drows[: len(scores.query)] += own[1]
        if self.weights.penalty:
            ml = ml + engine.penalise(scores, self.weights.penalty, value=value)
        clock.mark("score")
        engine.apply(scores, lr, count)
        if value:
            losses = engine.group.sum(torch.cat([ei, ml.reshape(1)]))
            ei, ml = losses[:-1], losses[-1]
        clock.mark("update")
        return (ei if value else None), ml

    def _negatives(
        self,
        scores: BatchScores,
        models: SubModels,
        near: PositiveSlice,
        losses: tuple[Tensor, Tensor],
        *,
        value: bool,
    ) -> tuple[Tensor, Tensor]:
        """Add EI and the other losses of all negatives to `losses`, and their gradients."""
        engine, device = self.engine, self.engine.model.device
        n, count = len(models.scale), scores.batch.chunks[0].negatives.shape[-1]
        ei, ml = losses
        for block in engine.blocks(scores, self._positives_at_once(scores, n, count)):
            shape = n, block.stop - block.start, count
            out, first, second, third = (engine.buffer(f"pairs{i}", shape) for i in range(4))
            distance, saved = engine.score(scores, block, out)
            engine.clock.mark("score")
            look = value and block.start == 0  # the first block stands for its chunk
            here = near.part(block.part, block.masked(device))
            got = pairs(distance, models, self.weights, here, (first, second, third), value=look)
            if look:
                times = (block.chunk.stop - block.chunk.start) / block.stop
                ei, ml = ei + got[0] * times, ml + got[1] * times
            engine.clock.mark("loss")
            engine.backward(scores, block, got[2], distance, saved)
            engine.clock.mark("score")
        return ei, ml

    def _positives_at_once(self, scores: BatchScores, n: int, count: int) -> int:
        """Positives whose scores fit the cache; all where weights span the chunk."""
        if self.weights.negative_norm == "batch":
            return max(1, len(scores.query))
        each = n if scores.slots is None else max(n, scores.rows.shape[1])
        return max(8, BLOCK // max(1, each * count))

    def _own_answers(self, scores: BatchScores, models: SubModels) -> tuple[Tensor, Tensor]:
        """OWN and its gradient (B, width) for the sources as answers; adds to those of queries."""
        model, batch = self.engine.model, scores.batch
        foreign = torch.from_numpy(batch.foreign).to(model.device)
        distance, saved = model.scorer.aligned(
            scores.query, scores.source.unsqueeze(1), model.bounds
        )
        own, grad = own_answers(distance[..., 0], models, self.weights, foreign, of=batch.of)
        dquery, dsource = model.scorer.aligned_backward(
            grad.unsqueeze(-1), distance, saved, model.bounds
        )
        scores.dquery += dquery
        return own, dsource.squeeze(1)
