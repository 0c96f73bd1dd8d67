"""DT: one size trained alone, which is a MED training with a single prefix."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from medapps.store import write_text
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


def choose(
    graph: Graph,
    train: MedConfig,
    dim: int,
    search: SearchConfig,
    seed: int,
    stop: Callable[[], bool] | None = None,
) -> Choice:
    """The best margin by validation MRR, with it the best penalty, with both the best rate."""
    start = alone(train, dim)
    if search.when == "on" and not len(graph.valid):
        raise MedappsError(
            f"{graph.name} has no validation triples to choose margin and rate by.",
            fix="Put a valid.parquet beside the graph, or use --set baseline.search.when=off.",
        )
    if search.when == "off" or not len(graph.valid):
        return Choice(start.margins[-1], start.lr, start.penalty)
    trials: dict[tuple[float, float, float], dict[str, float]] = {}

    def trial(margin: float, penalty: float, lr: float) -> float:
        at = (margin, penalty, lr)
        if at not in trials:
            short = {"epochs": search.epochs, "every": search.epochs}
            given = short | {"valid_triples": search.triples}
            config = alone(train, dim, margin=margin, lr=lr, penalty=penalty, **given)
            figures = train_med(graph, config, seed=seed, run=NO_RUN, stop=stop).metrics
            trials[at] = {
                "margin": margin,
                "penalty": penalty,
                "lr": lr,
                "valid_mrr": figures["best_valid_mrr"],
                "seconds": figures["train_seconds"],
            }
        return trials[at]["valid_mrr"]

    margins = [start.margins[-1] * factor for factor in search.margins]
    margin = max(margins, key=lambda value: trial(value, start.penalty, start.lr))
    penalties = [start.penalty * factor for factor in (1.0, *search.penalties)]
    penalty = max(penalties, key=lambda value: trial(margin, value, start.lr))
    rates = [start.lr * factor for factor in (1.0, *search.rates)]
    lr = max(rates, key=lambda value: trial(margin, penalty, value))
    seconds = sum(item["seconds"] for item in trials.values())
    return Choice(margin, lr, penalty, seconds, tuple(trials.values()))


def direct(order: Order) -> Crop:
    """DT: the size trained alone, with its own margin, penalty and rate."""
    watch = order.watch
    choice = _choice(order)
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
        "epochs": config.epochs,
    }
    seconds = float(embedding.metrics["train_seconds"])
    crop = embedding.crop(order.dim)
    entities = crop.rows(slice(None))
    return crop_of(order, entities, crop.relations, crop.spec, seconds, None, about)


def _choice(order: Order) -> Choice:
    """What is searched; a training that goes on after a stop keeps what it began with."""
    file = order.watch.folder and order.watch.folder / f"dt-{order.dim}-choice.json"
    if file and file.exists():
        kept = json.loads(file.read_text())
        return Choice(**kept | {"trials": tuple(kept["trials"])})
    search, asked = order.config.search, order.watch.asked
    choice = choose(order.graph, order.train, order.dim, search, order.seed, asked)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(asdict(choice)))
    return choice
