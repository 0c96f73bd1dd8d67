"""Train one croppable embedding: every prefix of the dims together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import forget
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.evaluate.filtered_ranking import Tables, rank_tables
from medapps.evaluate.link_prediction import mean_mrr
from medapps.graph.graph import Graph
from medapps.train.batches import Batch, arranged
from medapps.train.checkpoint import Counters
from medapps.train.config import MedConfig
from medapps.train.loop import LOOK, Loop, arithmetic, identity_of
from medapps.train.loss.med import (
    PositiveSlice,
    SubModels,
    Weights,
    own_answers,
    pairs,
    positives,
    step_w3,
)
from medapps.train.memory import Sizes, check_disk, check_memory, needed_bytes, peak_rss_bytes
from medapps.train.order import split_validation
from medapps.train.process_group import SINGLE, ProcessGroup
from medapps.train.session import Session
from medapps.train.step import PHASES, BatchScores, Engine, Model, new_model
from medapps.train.tables import WorkingSet, as_numpy


def train_med(
    graph: Graph,
    config: MedConfig,
    session: Session | None = None,
    *,
    group: ProcessGroup = SINGLE,
    **changes: Any,
) -> Embedding:
    """Train every prefix of config.dims together; equal seeds give equal tables.

    `changes` are fields of the session, such as `seed` or `checkpoint_dir`. Resumed on the same
    number of threads, a training ends with the same bits. Every process of a group holds, and
    returns, only its own rows of the entities.
    """
    session = replace(session or Session(), **changes)
    if not len(graph.train):
        raise MedappsError("The graph has no training triples.")
    with arithmetic(config):
        task = MedTask(graph, config, session, group)
        return task.embedding(task.loop.run())


class MedTask:
    """One MED training: its model, its validations and its best state."""

    def __init__(
        self,
        graph: Graph,
        config: MedConfig,
        session: Session,
        group: ProcessGroup = SINGLE,
        start: Callable[[Model], Model] | None = None,
    ) -> None:
        """`start` may replace the initial values, and say which rows move."""
        self.graph, self.config, self.session, self.group = graph, config, session, group
        self.epochs = config.epochs
        self.folder = session.checkpoint_dir and Path(session.checkpoint_dir)
        train, self.valid = split_validation(graph, config, session.seed)
        self.triples = len(train)
        first, last = group.shard(len(graph.entities))
        self.needed = self._check(Sizes(last - first, len(graph.relations), len(train), config))
        sizes = Sizes(len(graph.entities), len(graph.relations), len(train), config)
        sampler, note = arranged(train, sizes, session.seed, self.folder)
        self.sampler = replace(sampler, part=(group.index, group.size))
        if note:
            session.say(note)
        self.model = new_model(  # after the index, whose making takes more than it keeps
            config, last - first, sizes.relations, session.seed, begin=first, folder=self.folder
        )
        if start is not None:
            self.model = start(self.model)
        mapped = [self.model.entities, *self.model.entity_optimiser.state.values()]
        self.working = WorkingSet(mapped) if config.hardware.table == "mmap" else None
        weights = Weights.of(config, bounded=self.model.scorer.measure.is_distance)
        self.step = MedStep(Engine(self.model, group=group), weights)
        self.best: dict[str, Tensor] | None = None
        self.submodels = lru_cache(maxsize=2)(
            partial(SubModels.of, config, device=self.model.device)
        )
        identity = identity_of(graph, config, session.seed)
        self.loop = Loop(self, config, session, identity, group)

    def _check(self, sizes: Sizes) -> int:
        """Bytes that are needed; refuses what does not fit into memory or on the disk."""
        config, group = self.config, self.group
        early, mapped = config.validation.patience is not None, config.hardware.table == "mmap"
        needed = needed_bytes(sizes, best_in_memory=early and self.folder is None)
        total = group.agree(lambda: check_memory(needed, config, group.neighbours))
        if self.folder is not None:
            group.agree(partial(check_disk, sizes, self.folder))
        elif mapped and early:
            raise MedappsError("A table in a file needs checkpoint_dir to keep its best state.")
        if mapped and group.size > 1:
            raise MedappsError("--table mmap and --distributed exclude each other.")
        return total

    def state(self) -> dict[str, Tensor]:
        return self.model.state()

    def finished(self, at: Counters) -> bool:
        """Out of patience?"""
        patience = self.config.validation.patience
        return patience is not None and at.waited >= patience

    def update(self, at: Counters) -> float | None:
        """One step; the loss at every LOOK-th one, or at all where w3 is learned."""
        config, clock = self.config, self.step.engine.clock
        clock.mark(None)
        if self.working is not None:
            self._move_working_set(self.working, at)
        batch = self.sampler.batch(at.epoch, at.step)
        clock.mark("sample")
        learned = config.loss.dlw == "literal"
        models = self.submodels(at.w3 if learned else config.loss.w3)
        done = at.count / (config.epochs * self.sampler.steps)
        lr = config.optimiser.lr * (1 - done if config.optimiser.decay else 1.0)
        look = learned or at.count % LOOK == 0
        ei, ml = self.step(batch, models, lr, at.count, value=look)
        if ei is None:
            return None
        if learned:
            at.w3 = step_w3(at.w3, ei, config.dims, config.loss.w3_lr)
        return float((models.share[:, 0, 0] * ei).sum() + ml)

    def _move_working_set(self, working: WorkingSet, at: Counters) -> None:
        ranges = self.sampler.order.entities(at.epoch, at.step)
        if ranges != working.ranges:
            working.move(ranges)
            forget(self.sampler.triples)
            forget(self.graph.train)

    def end_epoch(self, at: Counters) -> dict[str, float]:
        """Seconds by phase, w3 and, now and then, the validation."""
        config, seconds = self.config, self.step.engine.clock.seconds
        figures = {f"seconds_{phase}": seconds[phase] for phase in PHASES}
        seconds.update(dict.fromkeys(PHASES, 0.0))
        if config.loss.dlw != "off":
            figures["w3"] = at.w3
        due = at.epoch % config.validation.every == 0 or at.epoch == config.epochs
        return figures | (self._validate(at) if len(self.valid) and due else {})

    def _validate(self, at: Counters) -> dict[str, float]:
        """MRR of every size on the validation triples; keeps the best state if patience is set."""
        config, model = self.config, self.model
        among = config.validation.candidates
        if self.working is not None:  # every row that is looked at takes its pages
            self.working.clear()
            among = min(among, self.needed // 4 // (4 * model.entities.shape[1] + 2**13))
        sample = len(self.graph.entities) > among
        ranks = rank_tables(
            Tables(model.entities, model.relations, config.dims, config.specs),
            self.valid,
            self.graph.known,
            candidates=among if sample else None,
            seed=self.session.seed,
            group=self.group,
        )
        if self.working is not None:
            self.working.clear()
        mrr = mean_mrr(ranks)
        mean = float(np.mean(list(mrr.values())))
        if mean > at.best_mrr:  # never where the mean is NaN
            at.best_mrr, at.best_epoch, at.waited = mean, at.epoch, 0
            if config.validation.patience is not None:
                self._keep_best(at)
        else:
            at.waited += 1
        prefix = "valid_sampled_mrr" if sample else "valid_mrr"
        return {f"{prefix}_{dim}": value for dim, value in mrr.items()} | {prefix: mean}

    def _keep_best(self, at: Counters) -> None:
        tables = self.model.tables()
        if self.folder is not None:
            self.group.save(self.folder / "best", tables, at, self.loop.identity)
        elif self.best is None:
            self.best = {name: table.clone() for name, table in tables.items()}
        else:
            for name, table in tables.items():
                self.best[name].copy_(table)

    def embedding(self, figures: dict[str, float]) -> Embedding:
        """The trained tables, of the best epoch where patience is set."""
        config, at, graph = self.config, self.loop.at, self.graph
        tables = self.model.tables()
        if config.validation.patience is not None and at.best_epoch:
            if self.folder is not None:
                self.group.load(self.folder / "best", tables, self.loop.identity)
            elif self.best is not None:
                tables = self.best
        metrics = figures | {
            "train_seconds": at.seconds,
            "epochs": float(at.epoch),
            "peak_rss_bytes": float(peak_rss_bytes()),
            "needed_bytes": float(self.needed),
        }
        if len(self.valid):
            metrics |= {"best_valid_mrr": at.best_mrr, "best_epoch": float(at.best_epoch)}
        logged = ("train_seconds", "peak_rss_bytes")
        self.session.run.metrics({name: metrics[name] for name in logged}, at.epoch)
        return Embedding(
            entities=as_numpy(tables["entities"]),
            relations=tables["relations"].cpu().numpy(),
            dims=config.dims,
            specs=config.specs,
            entity_ids=graph.entities,
            relation_ids=graph.relations,
            users=np.asarray(graph.users),
            graph_digest=graph.digest,
            metrics=metrics,
            about={
                "data": graph.name,
                "source": graph.source,
                "seed": self.session.seed,
                "epochs": at.epoch,
                "triples_seen": at.epoch * self.triples,
            },
        )


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
