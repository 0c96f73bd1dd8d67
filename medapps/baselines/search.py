"""The search for margin, penalty and rate of a size that is trained alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from medapps.baselines.config import SearchConfig
from medapps.baselines.single_size import alone
from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.store import digest_of, write_text
from medapps.tracking import NO_RUN
from medapps.train.config import MedConfig
from medapps.train.loop import Progress, train_med


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
    *,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    folder: Path | None = None,
) -> Choice:
    """The best margin by validation MRR, with it the best penalty, with both the best rate.

    Trials are kept in `folder`: a search that was cut off goes on, and is made once for all seeds.
    """
    start = alone(train, dim)
    given, held_out = len(graph.valid) > 0, train.validation.fraction > 0
    if search.when == "on" and not (given or held_out):
        raise MedappsError(
            f"{graph.name} has no validation triples to choose margin and rate by.",
            fix="Put a valid.parquet beside the graph, hold some out with --set "
            "train.fraction=0.02, or use --set baseline.search.when=off.",
        )
    if search.when == "off" or (search.when == "auto" and not given):
        return Choice(start.margins[-1], start.optimiser.lr, start.loss.penalty)
    passes = trial_passes(train, dim, search)
    key = digest_of([graph.digest, start.plain(), search.plain(), passes])[:16]
    file = folder and folder / f"{key}.json"
    trials = json.loads(file.read_text()) if file and file.exists() else []
    known = {(t["margin"], t["penalty"], t["lr"]): t["valid_mrr"] for t in trials}

    def told(now: Progress) -> None:
        if progress is not None:
            progress(replace(now, part=f"trial {len(trials) + 1}"))

    def trial(margin: float, penalty: float, lr: float) -> float:
        at = (margin, penalty, lr)
        if at not in known:
            short = {"epochs": passes, "every": passes, "triples": search.triples}
            if not given:
                short["patience"] = 1  # what holds triples out
            config = alone(train, dim, margin=margin, lr=lr, penalty=penalty, **short)
            figures = train_med(
                graph, config, seed=search.seed, run=NO_RUN, progress=told, stop=stop
            ).metrics
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
        "margin",
        start.margins[-1],
        search.margins,
        lambda m: trial(m, start.loss.penalty, start.optimiser.lr),
    )
    penalty = best(
        "penalty",
        start.loss.penalty,
        (1.0, *search.penalties),
        lambda p: trial(margin, p, start.optimiser.lr),
    )
    lr = best("lr", start.optimiser.lr, (1.0, *search.rates), lambda r: trial(margin, penalty, r))
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
