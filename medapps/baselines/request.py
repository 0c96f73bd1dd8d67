"""What a maker of a baseline is given, and how its tables become a crop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medapps.baselines.config import BaselineConfig
from medapps.baselines.distill import Watch
from medapps.crop.crop import Crop
from medapps.crop.score import ScoreSpec
from medapps.evaluate.filtered_ranking import rank_tables
from medapps.evaluate.link_prediction import mean_mrr
from medapps.graph.graph import Graph
from medapps.tracking import NO_RUN
from medapps.train.config import MedConfig


@dataclass(frozen=True)
class Order:
    """One baseline to make."""

    name: str
    graph: Graph
    dim: int
    config: BaselineConfig
    train: MedConfig
    seed: int = 0
    watch: Watch = field(default_factory=lambda: Watch(NO_RUN))
    source: Crop | None = None
    """The teacher; None only for dt."""
    earlier: Callable[[str, int], Crop] | None = None
    """Gives a baseline of another size that this one builds on, perhaps from a cache."""

    @property
    def teacher(self) -> Crop:
        assert self.source is not None, self.name
        return self.source


def crop_of(
    order: Order,
    entities: np.ndarray,
    relations: np.ndarray | None,
    spec: ScoreSpec,
    own_seconds: float,
    teacher: Crop | None,
    about: dict[str, Any] | None = None,
) -> Crop:
    """A crop with its origin and its cost: its own seconds and those of all its teachers."""
    before = float(teacher.about["train_seconds"]) if teacher is not None else 0.0
    searched = float(teacher.about.get("search_seconds", 0.0)) if teacher is not None else 0.0
    facts: dict[str, Any] = {
        "data": order.graph.name,
        "source": order.graph.source,
        "graph": order.graph.digest,
        "seed": order.seed,
        "own_seconds": own_seconds,
        "teacher_seconds": before,
        "train_seconds": own_seconds + before,
        "search_seconds": searched,
    }
    if teacher is not None:
        facts["teacher"] = {"method": teacher.method, "dim": teacher.dim}
    extra = dict(about or {})
    facts["search_seconds"] += extra.pop("search_seconds", 0.0)
    crop = Crop(
        entities=entities,
        entity_ids=order.graph.entities,
        dim=order.dim,
        method=order.name,
        spec=spec,
        relations=relations,
        relation_ids=None if relations is None else order.graph.relations,
        users=np.asarray(order.graph.users),
        about=facts | extra,
    )
    mrr = valid_mrr(crop, order.graph, order.train, order.seed)
    if mrr is not None:
        crop.about["valid_mrr"] = mrr
        order.watch.run.metric("valid_mrr", mrr)
    costs = ("train_seconds", "own_seconds", "teacher_seconds", "search_seconds")
    order.watch.run.metrics({name: crop.about[name] for name in costs})
    return crop


def valid_mrr(crop: Crop, graph: Graph, train: MedConfig, seed: int) -> float | None:
    """Filtered MRR of a crop on (a sample of) the validation triples, if it can be had."""
    from medapps.train.batches.holdout import split_validation

    if crop.relations is None or not len(graph.valid):
        return None
    _, valid = split_validation(graph, train, seed)
    many = len(graph.entities) > train.validation.candidates
    ranks = rank_tables(
        crop.entities,
        crop.relations,
        (crop.dim,),
        (crop.spec,),
        valid,
        graph.known,
        candidates=train.validation.candidates if many else None,
        seed=seed,
    )
    return mean_mrr(ranks)[crop.dim]
