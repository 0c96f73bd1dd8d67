"""Train and test a recommender: its parts, their weights, and what it reaches beside references."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.service import Source
from medapps.errors import MedappsError
from medapps.graph.split import PurchaseSplit, split_purchases
from medapps.recommend.config import RecommendConfig
from medapps.recommend.evaluation.measure import Blocks, Measured, Tests, in_blocks, measure
from medapps.recommend.evaluation.references import tune
from medapps.recommend.lists import blended
from medapps.recommend.mixture import PARTS, PLAIN, Mixture, fit, folded, graph_alone
from medapps.recommend.ncf_paper.problem import prepare
from medapps.recommend.parts.graph_score import GraphScore
from medapps.recommend.parts.service import Service
from medapps.recommend.problem import Problem, problem_of
from medapps.recommend.recommender import Recommender, trimmed
from medapps.recommend.vectors import graph_of, users_of
from medapps.report import Report
from medapps.tracking import NO_RUN, Run

_FITTED: dict[tuple[object, ...], Mixture] = {}
"""The last fit: a study that compares vectors on one split trains its other parts once."""


@dataclass(frozen=True)
class RecommendResult:
    """What one recommendation run produces."""

    report: Report
    model: Recommender


def recommend_products(
    source: Source | None,
    interactions: PurchaseSplit | pl.DataFrame,
    config: RecommendConfig | None = None,
    *,
    seed: int = 0,
    data: str = "",
) -> Report:
    """Train and test a recommender with a crop's vectors, or without any when `source` is None."""
    return train_recommender(source, interactions, config, seed=seed, data=data).report


def check_vectors(source: Source | None, split: PurchaseSplit, config: RecommendConfig) -> None:
    """Refuse vectors from which nothing could be learned."""
    graph, _ = graph_of(source, problem_of(split, users_of(source)))
    if config.model == "graph":
        _needed(graph)


def _needed(graph: GraphScore | None) -> GraphScore:
    if graph is None:
        raise MedappsError(
            "--model graph needs an embedding whose graph holds the purchases (relation takes).",
            fix="Train one with interactions beside the graph, or use --model ncf.",
        )
    return graph


def train_recommender(
    source: Source | None,
    interactions: PurchaseSplit | pl.DataFrame,
    config: RecommendConfig | None = None,
    *,
    seed: int = 0,
    data: str = "",
    run: Run = NO_RUN,
    negatives: pl.DataFrame | None = None,
) -> RecommendResult:
    """A recommender of the parts that `config` names, and its report.

    `interactions` is a split, or a table that is split as usual; `negatives` are a data set's own
    candidates for the sampled protocol.
    """
    config = config or RecommendConfig()
    split = (
        interactions if isinstance(interactions, PurchaseSplit) else split_purchases(interactions)
    )
    tests = tests_of(split, config, source, negatives)
    problem, began = tests.problem, time.perf_counter()
    graph, service = graph_of(source, problem)
    train, valid = problem.train, problem.valid
    if config.model != "graph":
        key = (problem.digest, train.shape, config.parts, seed)
        earlier = _FITTED.get(key)
        model = fit(
            train, valid, graph, service, problem.cold_valid, config.parts, given=earlier, seed=seed
        )
        if earlier is not None:  # what was not trained again still belongs to the cost
            began -= sum(earlier.seconds.get(name, 0.0) for name in PLAIN)
        _FITTED.clear()
        _FITTED[key] = model
    else:
        model = graph_alone(train, valid, _needed(graph))
    parts_told = _part_facts(model)
    known = problem.known
    model = folded(trimmed(model), known)
    seconds = time.perf_counter() - began
    measured = measure(_blocks(model), tests)
    references = {name: _reference(name, tests, seed) for name in config.references}
    method, dim = ("none", 0) if source is None else (source.method, source.dim)
    made = Recommender(model, problem.users, problem.items, known, config.model, method, dim)
    report = Report(
        task="recommend",
        method=method,
        dim=dim,
        data=data,
        seeds=(seed,),
        by_seed={name: [value] for name, value in measured.means.items()},
        units={name: values[None] for name, values in measured.units.items()},
        unit_digest=problem.digest,
        cost={"train_seconds": seconds, "bytes": float(_nbytes(model))},
        tables={"segments": measured.table()},
        details={
            "model": config.model,
            "users": len(split.users),
            "items": len(split.items),
            "train": int(problem.train.nnz),
            "test": len(tests.users),
            "cold_users": int(tests.segments()["cold"].sum()),
            "missing_users": _missing(service, problem),
            "notes": split.notes,
            "valid": model.weights.valid,
            "parts": parts_told,
            "seconds": {name: round(value, 2) for name, value in model.seconds.items()},
            "references": references,
        },
    )
    run.metrics(report.metrics)
    run.text(report.tables["segments"].write_csv(), "segments.csv")
    return RecommendResult(report, made)


def tests_of(
    split: PurchaseSplit,
    config: RecommendConfig,
    source: Source | None = None,
    negatives: pl.DataFrame | None = None,
) -> Tests:
    """The problem of a split, over the users of the source too, and its sampled candidates."""
    drawn = prepare(split, config, negatives)
    problem = problem_of(split, users_of(source))
    rows = drawn.test.copy()
    rows[:, 0] = problem.users.ids(split.users.names())[rows[:, 0]]
    warm = np.diff(problem.train.indptr)[rows[:, 0]] > 0
    rows, candidates = rows[warm], drawn.candidates[warm]
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    return Tests(problem, rows[order], candidates[order], config.few, config.list_length)


def _blocks(model: Mixture) -> Blocks:
    """Blended scores of users with the purchases that the model holds."""

    def blocks(users: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        own = model.train
        return blended(model.parts(own), model.weights_of(users, own), users, own.shape[1])

    return blocks


def reference_report(
    name: str, split: PurchaseSplit, config: RecommendConfig, *, seed: int = 0, data: str = ""
) -> Report:
    """A recommender that knows no graph as a report of its own, to be compared with the others."""
    tests = tests_of(split, config)
    measured, facts = _tuned(name, tests, seed)
    return Report(
        task="recommend",
        method=name,
        data=data,
        seeds=(seed,),
        by_seed={key: [value] for key, value in measured.means.items()},
        units={key: values[None] for key, values in measured.units.items()},
        unit_digest=tests.problem.digest,
        cost={"train_seconds": float(facts["seconds"]), "bytes": 0.0},
        tables={"segments": measured.table()},
        details={"users": len(split.users), "items": len(split.items)} | facts,
    )


def _reference(name: str, tests: Tests, seed: int) -> dict[str, object]:
    measured, facts = _tuned(name, tests, seed)
    return measured.means | facts


def _tuned(name: str, tests: Tests, seed: int) -> tuple[Measured, dict[str, Any]]:
    """A reference with the best of its settings on the validation purchases, measured."""
    problem = tests.problem
    found = tune(name, problem.train, problem.valid, seed=seed)
    blocks = in_blocks(found.model(problem.known), problem.train.shape[1])
    facts = {"setting": found.setting, "valid": found.valid, "seconds": found.seconds}
    return measure(blocks, tests), facts


def _part_facts(model: Mixture) -> dict[str, dict[str, object]]:
    """Weight and settings of each part; a weight of zero says that it did not help."""
    table = model.weights.table()
    cold = dict(zip(model.weights.names, model.weights.cold.round(4).tolist(), strict=True))
    return {
        name: {"weight": table[name], "cold_weight": cold[name]} | model.settings.get(name, {})
        for name in PARTS
        if name in table
    }


def _nbytes(model: Mixture) -> int:
    """Bytes of what the model carries."""
    total = model.popularity.nbytes
    if model.collaborative is not None:
        total += model.collaborative.users.nbytes + model.collaborative.items.nbytes
    if model.gmf is not None:
        total += model.gmf[0].items.nbytes + model.gmf[1].nbytes
    if model.neighbours is not None:
        total += model.neighbours.matrix.data.nbytes + model.neighbours.matrix.indices.nbytes
    if model.spectral is not None:
        total += model.spectral.basis.nbytes
    if model.graph is not None:
        total += model.graph.users.nbytes + model.graph.items.nbytes
    if model.service is not None:
        total += model.service.users.nbytes + model.service.items.nbytes
    return total


def _missing(service: Service | None, problem: Problem) -> int:
    """Users with purchases whom the graph does not know."""
    if service is None:
        return 0
    return int(((np.diff(problem.known.indptr) > 0) & ~service.known_users).sum())
