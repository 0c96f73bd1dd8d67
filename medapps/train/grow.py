"""Grow an embedding: rows of new entities are trained beside old rows that stay as they are.

The step, the losses and the settings are those of the embedding's own training; the optimiser just
leaves old rows alone. A new row starts where its triples say it lies, so a few epochs over the
triples of new entities are enough. Between them some old triples are asked with new entities as
their negatives: else nothing would keep new entities away from the answers to old questions. A
refresh trains all rows, from where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from medapps.arrays import forget
from medapps.crop.embedding import Embedding
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import digest_of
from medapps.train.config import MedConfig
from medapps.train.loop import arithmetic
from medapps.train.med import MedTask
from medapps.train.order import Ranges, Shuffle
from medapps.train.session import Session
from medapps.train.step import Model
from medapps.train.tables import as_numpy, as_tensor

EPOCHS = 4
"""Epochs over the triples of new entities, and of a refresh, unless told otherwise."""
STEPS = 50
"""A few new triples are seen again until there were as many steps."""
RATE = 0.5
"""Part of the learning rate: rows start near their place, and the first steps are the longest."""
PASSES = 3
"""How far from the old entities a new one may be and still start where its triples say."""
AT_ONCE = 2**16
"""Rows or triples that are worked on at a time."""


def grow(
    embedding: Embedding,
    graph: Graph,
    session: Session | None = None,
    *,
    epochs: int | None = None,
    refresh: bool = False,
    config: MedConfig | None = None,
    **changes: Any,
) -> Embedding:
    """The embedding with rows for the entities and relations that `graph` has beyond it.

    `graph` begins with the embedding's entities and relations (`grow_graph`). Only new rows are
    trained, all of them with `refresh`. `config` is by default that of the embedding's training;
    `changes` are fields of the session, such as `seed` or `checkpoint_dir`.
    """
    session = replace(session or Session(), **changes)
    old = len(embedding.entity_ids), len(embedding.relation_ids)
    config = config or config_of(embedding)
    check(embedding, graph, config, refresh=refresh)
    new = touching(graph.train, old)
    rows = graph.train if refresh else np.concatenate([graph.train[new], graph.train[~new]])
    trained = len(rows) if refresh else int(new.sum())
    config = _shortened(config, trained, epochs)
    parent = embedding.manifest.digest if embedding.manifest else ""
    work = replace(graph, train=rows, digest=digest_of([graph.digest, parent, refresh]))
    if not refresh:  # old validation triples say nothing of new rows
        work = replace(work, valid=graph.valid[:0], test=graph.test[:0])
    start = partial(_started, embedding=embedding, graph=graph, frozen=not refresh)
    with arithmetic(config):
        task = MedTask(work, config, session, start=start)
        if not refresh and isinstance(task.sampler.order, Shuffle):
            order = Replay(task.sampler.order, trained, old[0])
            task.sampler = replace(task.sampler, order=order)
        made = task.embedding(task.loop.run())
    seconds = made.metrics["train_seconds"]
    counts = {"new_entities": len(graph.entities) - old[0], "trained_triples": trained}
    metrics = made.metrics | {key: float(value) for key, value in counts.items()}
    metrics |= {
        "grow_seconds": seconds,
        "train_seconds": seconds + embedding.metrics.get("train_seconds", 0.0),
    }
    about = made.about | {"parent": parent, "refresh": refresh}
    return replace(made, graph_digest=graph.digest, metrics=metrics, about=about)


@dataclass(frozen=True)
class Replay:
    """Every new triple once per epoch with negatives from everywhere, and between them some old
    triples, other ones in every epoch, with negatives among new entities alone.

    Old triples take the share that new entities have among all: so often is one of them a negative
    of an old triple where everything is trained.
    """

    every: Shuffle
    """The order of new triples, which come first, and old ones."""
    new: int
    """New triples."""
    old: int
    """Old entities."""

    @cached_property
    def _fresh(self) -> Shuffle:
        return replace(self.every, triples=self.new)

    @cached_property
    def _again(self) -> Shuffle:
        return replace(self.every, triples=self.every.triples - self.new)

    @cached_property
    def _replayed(self) -> int:
        """Batches of old triples in an epoch."""
        share = 1 - self.old / self.every.count
        return min(self._again.steps, round(share * self._again.steps))

    @property
    def steps(self) -> int:
        return self._fresh.steps + self._replayed

    def _old_step(self, step: int) -> tuple[bool, int]:
        """Whether a step is one of old triples, and which one; they are spread evenly."""
        before, after = (at * self._replayed // self.steps for at in (step, step + 1))
        return after > before, before

    def rows(self, epoch: int, step: int) -> np.ndarray:
        is_old, before = self._old_step(step)
        if not is_old:
            return self._fresh.rows(epoch, step - before)
        turn = epoch * self._replayed + before
        return self.new + self._again.rows(*divmod(turn, self._again.steps))

    def entities(self, epoch: int, step: int) -> Ranges:
        is_old, _ = self._old_step(step)
        return ((self.old if is_old else 0, self.every.count),)


def touching(triples: np.ndarray, old: tuple[int, int]) -> np.ndarray:
    """bool (n,): triples with an entity or a relation beyond the first `old` ones."""
    entities, relations = old
    ends = (triples[:, 0] >= entities) | (triples[:, 2] >= entities)
    return ends | (triples[:, 1] >= relations)


def config_of(embedding: Embedding) -> MedConfig:
    """The settings that an embedding was trained with."""
    stated = dict(embedding.manifest.config) if embedding.manifest else {}
    known = {key: value for key, value in stated.items() if key in MedConfig.model_fields}
    if not known:
        raise MedappsError(
            "The embedding does not say how it was trained.",
            fix="Grow one that medapps train saved, or give its config.",
        )
    return MedConfig(**known)


def check(embedding: Embedding, graph: Graph, config: MedConfig, *, refresh: bool = False) -> None:
    """Refuse a growth that would change what stays, or that has nothing to train."""
    for kind, mine, its in (
        ("entities", embedding.entity_ids, graph.entities),
        ("relations", embedding.relation_ids, graph.relations),
    ):
        first = np.arange(min(len(mine), len(its)))
        if len(its) < len(mine) or not mine.names().equals(its.names(first)):
            raise MedappsError(
                f"The {kind} of the graph do not begin with those of the embedding.",
                fix="Grow the graph that it was trained on: grow_graph(graph, new triples).",
            )
    bits = embedding.entities.dtype == np.uint16
    fits = config.dims == embedding.dims and config.specs == embedding.specs
    if not fits or bits != (config.hardware.table == "bf16"):
        raise MedappsError(
            "Sizes, scorer, margins and number type of an embedding stay when it grows.",
            fix="Leave these settings out, or train again: medapps train.",
        )
    old = len(embedding.entity_ids), len(embedding.relation_ids)
    if not refresh and not touching(graph.train, old).any():
        raise MedappsError(
            "No triple has a new entity or relation, so no row would be trained.",
            fix="Train all rows with --refresh, so that new triples of old entities count.",
        )


def _shortened(config: MedConfig, triples: int, epochs: int | None) -> MedConfig:
    """For rows that start near their place: as many epochs as are wanted, else a few."""
    steps = -(-triples // config.sampling.batch)
    epochs = epochs or max(EPOCHS, -(-STEPS // steps))
    return config.changed(epochs=epochs, patience=None, lr=RATE * config.optimiser.lr)


def _started(model: Model, embedding: Embedding, graph: Graph, frozen: bool) -> Model:
    """Old rows as they were, new ones where their triples say; the optimisers know which move."""
    old = len(embedding.entities), len(embedding.relations)
    for first in range(0, old[0], AT_ONCE):
        part = slice(first, min(first + AT_ONCE, old[0]))
        model.entities[part] = as_tensor(np.array(embedding.entities[part]))
        forget(embedding.entities)
        forget(as_numpy(model.entities))
    model.relations[: old[1]] = as_tensor(np.array(embedding.relations))
    _place(model, graph.train[touching(graph.train, old)], old)
    if not frozen:
        return model
    return replace(
        model,
        entity_optimiser=replace(model.entity_optimiser, first=old[0]),
        relation_optimiser=replace(model.relation_optimiser, first=old[1]),
    )


def _place(model: Model, triples: np.ndarray, old: tuple[int, int]) -> None:
    """Write the start of new rows: the mean of where their triples to placed entities put them.

    What no triple places keeps its random start, and so do all rows of a scorer whose queries are
    no places of entities.
    """
    if model.scorer.rule.REALS[2] != model.scorer.rule.REALS[0]:
        return
    known = triples[triples[:, 1] < old[1]]
    placed = np.zeros(len(model.entities), bool)
    placed[: old[0]] = True
    for _ in range(PASSES):
        sums = torch.zeros(len(placed) - old[0], model.entities.shape[1])
        counts = torch.zeros(len(sums))
        for side, given, asked in (("tail", 0, 2), ("head", 2, 0)):
            use = known[placed[known[:, given]] & ~placed[known[:, asked]]]
            for start in range(0, len(use), AT_ONCE):
                part = torch.from_numpy(np.ascontiguousarray(use[start : start + AT_ONCE]))
                source = model.entities[part[:, given]].float()
                query = model.scorer.query(source, model.relations[part[:, 1]], side)
                at = part[:, asked].long() - old[0]
                sums.index_add_(0, at, query)
                counts.index_add_(0, at, torch.ones(len(at)))
        found = counts > 0
        rows = torch.from_numpy(np.flatnonzero(found.numpy()) + old[0])
        model.entities[rows] = (sums[found] / counts[found, None]).to(model.entities.dtype)
        placed[rows.numpy()] = True
        if not len(rows):
            return
