"""What a maker of a baseline is given, and how its tables become a crop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medapps.baselines.config import BaselineConfig
from medapps.crop.crop import Crop
from medapps.evaluate.filtered_ranking import Tables, rank_tables
from medapps.evaluate.link_prediction import mean_mrr
from medapps.graph.graph import Graph
from medapps.model.rule import ScoreSpec
from medapps.train.config import MedConfig
from medapps.train.order import split_validation
from medapps.train.session import Session


@dataclass(frozen=True)
class BaselineRequest:
    """One baseline to make."""

    name: str
    graph: Graph
    dim: int
    config: BaselineConfig = field(default_factory=BaselineConfig)
    train: MedConfig = field(default_factory=MedConfig)
    """What the baselines share with MED."""
    session: Session = field(default_factory=Session)
    source: Crop | None = None
    """The teacher; None only for dt."""
    earlier: Callable[[str, int], Crop] | None = None
    """Gives a baseline of another size that this one builds on, perhaps from a cache."""

    @property
    def teacher(self) -> Crop:
        assert self.source is not None, self.name
        return self.source


@dataclass(frozen=True)
class Made:
    """The tables of a baseline, and what making them took."""

    entities: np.ndarray
    relations: np.ndarray | None
    spec: ScoreSpec
    seconds: float
    teacher: Crop | None = None
    about: dict[str, Any] = field(default_factory=dict)


def crop_of(request: BaselineRequest, made: Made) -> Crop:
    """A crop with its origin and its cost: its own seconds and those of all its teachers."""
    graph, teacher, extra = request.graph, made.teacher, dict(made.about)
    before = float(teacher.about["train_seconds"]) if teacher is not None else 0.0
    searched = float(teacher.about.get("search_seconds", 0.0)) if teacher is not None else 0.0
    facts: dict[str, Any] = {
        "data": graph.name,
        "source": graph.source,
        "graph": graph.digest,
        "seed": request.session.seed,
        "epochs": request.train.epochs,
        "triples_seen": request.train.epochs * len(graph.train),
        "own_seconds": made.seconds,
        "teacher_seconds": before,
        "train_seconds": made.seconds + before,
        "search_seconds": searched + extra.pop("search_seconds", 0.0),
    }
    if teacher is not None:
        facts["teacher"] = {"method": teacher.method, "dim": teacher.dim}
    crop = Crop(
        entities=made.entities,
        entity_ids=graph.entities,
        dim=request.dim,
        method=request.name,
        spec=made.spec,
        relations=made.relations,
        relation_ids=None if made.relations is None else graph.relations,
        users=np.asarray(graph.users),
        about=facts | extra,
    )
    mrr, run = valid_mrr(crop, request), request.session.run
    if mrr is not None:
        crop.about["valid_mrr"] = mrr
        run.metric("valid_mrr", mrr)
    costs = ("train_seconds", "own_seconds", "teacher_seconds", "search_seconds")
    run.metrics({name: crop.about[name] for name in costs})
    return crop


def valid_mrr(crop: Crop, request: BaselineRequest) -> float | None:
    """Filtered MRR of a crop on (a sample of) the validation triples, if it can be had."""
    graph, seed = request.graph, request.session.seed
    if crop.relations is None or not len(graph.valid):
        return None
    _, valid = split_validation(graph, request.train, seed)
    among = request.train.validation.candidates
    ranks = rank_tables(
        Tables(crop.entities, crop.relations, (crop.dim,), (crop.spec,)),
        valid,
        graph.known,
        candidates=among if len(graph.entities) > among else None,
        seed=seed,
    )
    return mean_mrr(ranks)[crop.dim]
