"""DT: one size trained alone, which is a MED training with a single prefix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medapps.baselines.config import SearchConfig
from medapps.baselines.order import Order, crop_of
from medapps.crop.crop import Crop
from medapps.embed.config import MedConfig
from medapps.embed.train import train_med
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.score.rules import RULES
from medapps.score.spec import SUMS
from medapps.store import digest_of, write_text
from medapps.tracking import NO_RUN

ALONE: dict[str, Any] = {
    "ml_down": 0.0,
    "ml_up": 0.0,
    "distil": 0.0,
    "positive_weights": "uniform",
    "negative_weights": "own",
    "negative_norm": "per_positive",
    "dlw": "off",
    "submodels": "all",
    "rotate_at": None,
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
    if RULES[train.scorer].RELATIONS == "angles" and train.norm in SUMS:
        ratio = train.lr / default_rate(train, dim)  # angles are as large in every size
        usual["relation_rate"] = train.relation_rate * ratio
    given = ALONE | usual | more
    if margin:
        given["margin"] = margin
    return train.resized([dim], **given)


def default_rate(train: MedConfig, dim: int) -> float:
    """MED's rate, raised for small sizes.

    A step moves a row by about rate * sqrt(dim): the fourth root goes half the way to steps of
    equal length. A prefix of a sum is stretched in MED: alone its numbers, and so its steps, are
    larger by as much.
    """
    power = 0.25
    if train.norm in SUMS:
        power = 0.5 if train.keep_length else train.scale_power
    return train.lr * (train.dims[-1] / dim) ** power


def default_length(train: MedConfig, dim: int) -> float:
    """Start length of an entity whose numbers are as large as those of MED's stretched prefix."""
    if train.norm not in SUMS or train.keep_length:
        return train.init_norm
    return train.init_norm * (train.dims[-1] / dim) ** (train.scale_power - 0.5)


def default_penalty(train: MedConfig, dim: int) -> float:
    """MED's penalty over what makes it weaker there: a small prefix has its scores stretched, and
    several losses move a number.
    """
    losses = sum(train.from_larger**i for i in range(len(train.dims)))
    return train.penalty / (losses * (train.dims[-1] / dim) ** train.scale_power)


@dataclass(frozen=True)
class Choice:
    """Margin, rate and penalty of a direct training, and what finding them cost."""

    margin: float
    lr: float
    penalty: float
    seconds: float = 0.0
    trials: tuple[dict[str, float], ...] = ()
    at_edge: tuple[str, ...] = ()
    """What is still best at an edge of all that was tried: more of it might be better."""


def choose(
    graph: Graph,
    train: MedConfig,
    dim: int,
    search: SearchConfig,
    stop: Callable[[], bool] | None = None,
    folder: Path | None = None,
) -> Choice:
    """The best margin by validation MRR, with it the best penalty, with both the best rate.

    Trials are kept in `folder`: a search that was cut off goes on, and is made once for all seeds.
    """
    start = alone(train, dim)
    if search.when == "on" and not len(graph.valid):
        raise MedappsError(
            f"{graph.name} has no validation triples to choose margin and rate by.",
            fix="Put a valid.parquet beside the graph, or use --set baseline.search.when=off.",
        )
    if search.when == "off" or not len(graph.valid):
        return Choice(start.margins[-1], start.lr, start.penalty)
    key = digest_of([graph.digest, start.plain(), search.plain()])[:16]
    file = folder and folder / f"{key}.json"
    passes = trial_passes(train, dim, search)
    trials = json.loads(file.read_text()) if file and file.exists() else []
    known = {(t["margin"], t["penalty"], t["lr"]): t["valid_mrr"] for t in trials}

    def trial(margin: float, penalty: float, lr: float) -> float:
        at = (margin, penalty, lr)
        if at not in known:
            given = {"epochs": passes, "every": passes, "valid_triples": search.triples}
            config = alone(train, dim, margin=margin, lr=lr, penalty=penalty, **given)
            figures = train_med(graph, config, seed=search.seed, run=NO_RUN, stop=stop).metrics
            known[at] = figures["best_valid_mrr"]
            one = {"margin": margin, "penalty": penalty, "lr": lr, "valid_mrr": known[at]}
            trials.append(one | {"seconds": figures["train_seconds"]})
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, json.dumps(trials))
        return known[at]

    at_edge = []

    def best(
        name: str, usual: float, factors: Iterable[float], by: Callable[[float], float]
    ) -> float:
        value, inside = highest([usual * factor for factor in factors], by, search.further)
        if not inside:
            at_edge.append(name)
        return value

    margin = best(
        "margin", start.margins[-1], search.margins, lambda m: trial(m, start.penalty, start.lr)
    )
    penalty = best(
        "penalty", start.penalty, (1.0, *search.penalties), lambda p: trial(margin, p, start.lr)
    )
    lr = best("lr", start.lr, (1.0, *search.rates), lambda r: trial(margin, penalty, r))
    seconds = sum(item["seconds"] for item in trials)
    return Choice(margin, lr, penalty, seconds, tuple(trials), tuple(at_edge))


def trial_passes(train: MedConfig, dim: int, search: SearchConfig) -> int:
    """Passes of a trial, which costs about the same at every size, but never more than the training
    itself has: small models rise late, and after a few passes chance chooses among them.
    """
    return max(1, min(train.epochs, round(search.epochs * train.dims[-1] / dim)))


def highest(
    values: Iterable[float], by: Callable[[float], float], further: int
) -> tuple[float, bool]:
    """The value with the highest `by`, and whether lower values lie on both sides of it.

    While it is the smallest or the largest, the row goes on there by its last ratio, at most
    `further` times. A row of one value has no sides to look at.
    """
    row = sorted(set(values))
    value = max(row, key=by)
    for _ in range(further):
        if len(row) > 1 and value == row[0]:
            row.insert(0, value * value / row[1])
        elif len(row) > 1 and value == row[-1]:
            row.append(value * value / row[-2])
        else:
            break
        value = max(row, key=by)
    return value, len(row) == 1 or row[0] < value < row[-1]


def direct(order: Order) -> Crop:
    """DT: the size trained alone, with its own margin, penalty and rate."""
    watch = order.watch
    search = order.config.search
    choice = choose(order.graph, order.train, order.dim, search, watch.asked, watch.searches)
    config = alone(
        order.train, order.dim, margin=choice.margin, lr=choice.lr, penalty=choice.penalty
    )
    embedding = train_med(
        order.graph,
        config,
        seed=order.seed,
        run=watch.run,
        progress=watch.progress,
        stop=watch.asked,
        checkpoint_dir=watch.folder and watch.folder / f"dt-{order.dim}",
        resume=True,
    )
    about = {
        "margin": choice.margin,
        "lr": choice.lr,
        "penalty": choice.penalty,
        "search_seconds": choice.seconds,
        "search_trials": list(choice.trials),
        "search_at_edge": list(choice.at_edge),
        "epochs": config.epochs,
    }
    seconds = float(embedding.metrics["train_seconds"])
    crop = embedding.crop(order.dim)
    entities = crop.rows(slice(None))
    return crop_of(order, entities, crop.relations, crop.spec, seconds, None, about)
