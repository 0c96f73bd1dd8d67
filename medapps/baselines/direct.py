"""DT: one size trained alone, with its own margin, penalty and rate, which may be searched for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from medapps.baselines.config import SearchConfig
from medapps.baselines.request import BaselineRequest, Made, crop_of
from medapps.crop.crop import Crop
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.model.rules import RULES
from medapps.store import digest_of, write_text
from medapps.train.config import MedConfig
from medapps.train.loop import Diverged
from medapps.train.med import train_med
from medapps.train.session import Session

ALONE: dict[str, Any] = {
    "ml_down": 0.0,
    "ml_up": 0.0,
    "distil": 0.0,
    "positive_weights": "uniform",
    "negative_weights": "own",
    "negative_norm": "per_positive",
    "dlw": "off",
    "scale_power": 0.0,
    "rate_power": 0.0,
    "from_larger": 1.0,
    "patience": None,
}
"""What concerns several prefixes or early stopping has no part in a model of one size."""


def alone(
    train: MedConfig, dim: int, *, margin: float | None = None, lr: float | None = None, **more: Any
) -> MedConfig:
    """The settings of MED for one size alone: same batches, negatives, optimiser and epochs."""
    usual = {
        "lr": lr or default_rate(train, dim),
        "penalty": default_penalty(train, dim),
        "init_norm": default_length(train, dim),
    }
    rule = RULES[train.scorer]
    if rule.RELATIONS == "angles" and rule.NORMS[train.norm].sums:
        ratio = train.optimiser.lr / default_rate(train, dim)  # angles are as large in every size
        usual["relation_rate"] = train.optimiser.relation_rate * ratio
    given = ALONE | usual | more
    if margin:
        given["margin"] = margin
    return train.resized([dim], **given)


def _sums(train: MedConfig) -> bool:
    """Do distances grow in proportion to the dims?"""
    return RULES[train.scorer].NORMS[train.norm].sums


def default_rate(train: MedConfig, dim: int) -> float:
    """MED's rate, raised for small sizes.

    A step moves a row by about rate * sqrt(dim): the fourth root goes half the way to steps of
    equal length. A prefix of a sum is stretched in MED: alone its numbers, and so its steps, are
    larger by as much.
    """
    power = 0.25
    if _sums(train):
        power = 0.5 if train.optimiser.keep_length else train.loss.scale_power
    return train.optimiser.lr * (train.dims[-1] / dim) ** power


def default_length(train: MedConfig, dim: int) -> float:
    """Start length of an entity whose numbers are as large as those of MED's stretched prefix."""
    if not _sums(train) or train.optimiser.keep_length:
        return train.optimiser.init_norm
    return train.optimiser.init_norm * (train.dims[-1] / dim) ** (train.loss.scale_power - 0.5)


def default_penalty(train: MedConfig, dim: int) -> float:
    """MED's penalty over what makes it weaker there: a small prefix has its scores stretched, and
    several losses move a number.
    """
    losses = sum(train.loss.from_larger**i for i in range(len(train.dims)))
    return train.loss.penalty / (losses * (train.dims[-1] / dim) ** train.loss.scale_power)


@dataclass(frozen=True)
class Choice:
    """Margin, learning rate and penalty of a direct training, and what finding them cost."""

    margin: float
    lr: float
    penalty: float
    seconds: float = 0.0
    trials: tuple[dict[str, float], ...] = ()
    at_edge: tuple[str, ...] = ()
    """What is best on an edge of the grid even after it was extended."""


@dataclass(frozen=True)
class Trials:
    """Short trainings of one size by margin, penalty and rate, each made once."""

    graph: Graph
    train: MedConfig
    dim: int
    search: SearchConfig
    session: Session
    file: Path | None
    made: list[dict[str, float]] = field(default_factory=list)

    def mrr(self, margin: float, penalty: float, lr: float) -> float:
        """Validation MRR of one setting."""
        at = {"margin": margin, "penalty": penalty, "lr": lr}
        for one in self.made:
            if at.items() <= one.items():
                return one["valid_mrr"]
        epochs = trial_epochs(self.train, self.dim, self.search)
        short: dict[str, Any] = {"epochs": epochs, "every": epochs, "triples": self.search.triples}
        if not len(self.graph.valid):
            short["patience"] = 1  # what holds triples out
        config = alone(self.train, self.dim, margin=margin, lr=lr, penalty=penalty, **short)
        session = self.session.trial(self.search.seed, f"trial {len(self.made) + 1}")
        began, mrr = perf_counter(), 0.0  # as bad as a trial can be
        with suppress(Diverged):
            mrr = train_med(self.graph, config, session).metrics["best_valid_mrr"]
        self.made.append(at | {"valid_mrr": mrr, "seconds": perf_counter() - began})
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.file, json.dumps(self.made))
        return mrr


def choose(
    graph: Graph, train: MedConfig, dim: int, search: SearchConfig, session: Session
) -> Choice:
    """The best margin by validation MRR, with it the best penalty, with both the best rate.

    Trials are kept in session.searches: a search that was interrupted continues, and is made once
    for all seeds.
    """
    start = alone(train, dim)
    margin, penalty, lr = start.margins[-1], start.loss.penalty, start.optimiser.lr
    check_search(graph, train, search)
    if search.when == "off" or (search.when == "auto" and not len(graph.valid)):
        return Choice(margin, lr, penalty)
    epochs = trial_epochs(train, dim, search)
    key = digest_of([graph.digest, start.plain(), search.plain(), epochs])[:16]
    file = session.searches and session.searches / f"{key}.json"
    made = json.loads(file.read_text()) if file and file.exists() else []
    trials, at_edge = Trials(graph, train, dim, search, session, file, made), []

    def best(
        name: str, usual: float, factors: Iterable[float], by: Callable[[float], float]
    ) -> float:
        value, inside = highest([usual * factor for factor in factors], by, search.further)
        if not inside:
            at_edge.append(name)
        return value

    margin = best("margin", margin, search.margins, lambda m: trials.mrr(m, penalty, lr))
    usual = penalty
    penalty = best("penalty", usual, (1.0, *search.penalties), lambda p: trials.mrr(margin, p, lr))
    rate = best("lr", lr, (1.0, *search.rates), lambda r: trials.mrr(margin, penalty, r))
    seconds = sum(one["seconds"] for one in trials.made)
    return Choice(margin, rate, penalty, seconds, tuple(trials.made), tuple(at_edge))


def check_search(graph: Graph, train: MedConfig, search: SearchConfig) -> None:
    """Refuse a search where there is nothing to choose by."""
    if search.when == "on" and not (len(graph.valid) or train.validation.fraction > 0):
        raise MedappsError(
            f"{graph.name} has no validation triples to choose margin and rate by.",
            fix="Put a valid.parquet beside the graph, hold some out with --set "
            "train.fraction=0.02, or use --set baseline.search.when=off.",
        )


def trial_epochs(train: MedConfig, dim: int, search: SearchConfig) -> int:
    """Epochs of a trial, which costs about the same at every size, but never more than the training
    itself has: small models rise late, and after a few epochs chance chooses among them.
    """
    return max(1, min(train.epochs, round(search.epochs * train.dims[-1] / dim)))


def highest(
    values: Iterable[float], by: Callable[[float], float], further: int
) -> tuple[float, bool]:
    """The value with the highest `by`, and whether lower values lie on both sides of it.

    While the best value is on an edge of the grid, the grid is extended there by its last ratio, at
    most `further` times. A grid of one value has no edges.
    """
    grid = sorted(set(values))
    value = max(grid, key=by)
    for _ in range(further):
        if len(grid) > 1 and value == grid[0]:
            grid.insert(0, value * value / grid[1])
        elif len(grid) > 1 and value == grid[-1]:
            grid.append(value * value / grid[-2])
        else:
            break
        value = max(grid, key=by)
    return value, len(grid) == 1 or grid[0] < value < grid[-1]


def direct(request: BaselineRequest) -> Crop:
    """DT: the size trained alone, with its own margin, penalty and learning rate."""
    train, dim, session = request.train, request.dim, request.session
    choice = choose(request.graph, train, dim, request.config.search, session)
    config = alone(train, dim, margin=choice.margin, lr=choice.lr, penalty=choice.penalty)
    embedding = train_med(request.graph, config, session.inside(f"dt-{dim}"))
    about = {
        "margin": choice.margin,
        "lr": choice.lr,
        "penalty": choice.penalty,
        "search_seconds": choice.seconds,
        "search_trials": list(choice.trials),
        "search_at_edge": list(choice.at_edge),
        "epochs": config.epochs,
    }
    crop = embedding.crop(dim)
    seconds = float(embedding.metrics["train_seconds"])
    made = Made(crop.rows(slice(None)), crop.relations, crop.spec, seconds, None, about)
    return crop_of(request, made)
