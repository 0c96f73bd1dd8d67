"""Product recommendation on PC and phone: NCF that reads the crop as a service vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from torch import Tensor

from medapps.crop.service import (
    Scaling,
    Source,
    UserVectors,
    user_vectors,
)
from medapps.crop.service import (
    control as control_vectors,
)
from medapps.errors import MedappsError
from medapps.evaluate.metrics import coverage, rank_metrics, reward
from medapps.evaluate.statistics import bootstrap_interval
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.fit import NcfFit, train_ncf
from medapps.recommend.known_pairs import draw_candidates, free_items
from medapps.recommend.model import Recommender
from medapps.recommend.network import NeuMF
from medapps.recommend.problem import Problem, prepare
from medapps.recommend.ranking import full_ranks, sampled_ranks
from medapps.recommend.reference import reference_ranks
from medapps.report import Report
from medapps.tracking import NO_RUN, Run


@dataclass(frozen=True)
class RecommendResult:
    """What one recommendation run produces."""

    report: Report
    model: Recommender
    study: Problem


def recommend_products(
    source: Source | None,
    interactions: pl.DataFrame,
    config: RecommendConfig | None = None,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    run: Run = NO_RUN,
    data: str = "",
    control: str | None = None,
    negatives: pl.DataFrame | None = None,
) -> Report:
    """Train and test NCF with a crop's user vectors, or without any when `source` is None.

    `control` random or shuffled puts that stand-in in the place of the source's vectors;
    `negatives` are a data set's own candidates for the sampled protocol.
    """
    config = config or RecommendConfig()
    study = prepare(interactions, config, negatives)
    return train_recommender(
        source, study, config, seeds=seeds, run=run, data=data, control=control
    ).report


def train_recommender(
    source: Source | None,
    study: Problem,
    config: RecommendConfig,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    run: Run = NO_RUN,
    data: str = "",
    control: str | None = None,
) -> RecommendResult:
    """`recommend_products` on a prepared study, with the model of the best seed."""
    vectors = None if source is None else user_vectors(source, study.users)
    if vectors is not None and control is not None:
        vectors = control_vectors(control, vectors, 0)
    scaling, service = scaled_service(vectors, study, config.ncf)
    config, first = _regularised(study, service, config, seeds[0], _logger(run, seeds[0]))
    fits: list[NcfFit] = []
    ranked: list[_Ranked] = []
    for seed in seeds:
        fit = fit_ncf(study, service, config, seed, _logger(run, seed)) if fits else first
        fits.append(fit)
        ranked.append(_rank(fit, study, config))
        run.metrics({f"seed{seed}.{k}": v for k, v in ranked[-1].means(study, config).items()})
    by_seed = _collect([result.means(study, config) for result in ranked])
    segments = study.segments(config.few)
    units = _units(ranked, segments)
    best = int(np.argmax([_best_valid(fit) for fit in fits]))
    method, dim = ("none", 0) if vectors is None else (vectors.method, vectors.dim)
    beside = {name: _reference(name, study, config) for name in config.references}
    report = Report(
        task="recommend",
        method=method,
        dim=dim,
        data=data,
        seeds=seeds,
        by_seed=by_seed,
        units=units,
        unit_digest=study.digest,
        cost={
            "train_seconds": float(np.mean([fit.seconds for fit in fits])),
            "samples_per_second": float(np.mean([fit.samples_per_second for fit in fits])),
            "bytes": float(sum(p.numel() for p in fits[0].model.parameters()) * 4),
        },
        tables={"segments": _segment_table(units, segments)},
        details={
            "users": len(study.users),
            "items": len(study.items),
            "train": len(study.split.train),
            "test": len(study.split.test),
            "cold_users": int(segments["cold"].sum()),
            "missing_users": 0 if vectors is None else vectors.missing,
            "own_negatives": study.own_candidates,
            "notes": study.notes,
            "epochs": [fit.epoch for fit in fits],
            "valid": [_best_valid(fit) for fit in fits],
            "user_decay": config.ncf.user_decay,
            "beside": beside,
        },
    )
    run.metrics(report.metrics)
    run.text(report.tables["segments"].write_csv(), "segments.csv")
    model = Recommender.of(fits[best], study, config, method, dim, scaling, service)
    return RecommendResult(report, model, study)


def _regularised(
    study: Problem,
    service: np.ndarray | None,
    config: RecommendConfig,
    seed: int,
    on_epoch: Callable[[int, dict[str, float]], None],
) -> tuple[RecommendConfig, NcfFit]:
    """The user_decay with the best validation ndcg@10, and the first seed's network with it."""
    values = config.user_decays if len(study.split.valid) else ()
    trials = []
    for value in values or (config.ncf.user_decay,):
        ncf = config.ncf.model_copy(update={"user_decay": value})
        changed = config.model_copy(update={"ncf": ncf})
        trials.append((changed, fit_ncf(study, service, changed, seed, on_epoch)))
    return max(trials, key=lambda trial: _best_valid(trial[1]))


def scaled_service(
    vectors: UserVectors | None, study: Problem, config: NcfConfig
) -> tuple[Scaling | None, np.ndarray | None]:
    """Standardised on training users, then scaled so that its length does not grow with dim."""
    if vectors is None:
        return None, None
    fitted_on = vectors.known & ~study.unknown
    if not fitted_on.any():
        raise MedappsError(
            f"There is nothing to learn from vectors: none of the {int((~study.unknown).sum())} "
            "users with training interactions is in the graph.",
            fix="Check that both files name users the same way, or use --method none.",
        )
    scaling = Scaling.fit(vectors.values[fitted_on])
    return scaling, scale_service(scaling, vectors.values, vectors.known, config.service_gain)


def scale_service(
    scaling: Scaling, values: np.ndarray, known: np.ndarray, gain: float
) -> np.ndarray:
    """(users, dim + 1): vectors of typical length `gain`, and the missing flag."""
    service = scaling.apply(values, known)
    service[:, :-1] *= gain * values.shape[1] ** -0.5
    return service


def fit_ncf(
    study: Problem,
    service: np.ndarray | None,
    config: RecommendConfig,
    seed: int,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> NcfFit:
    """Train with early stopping on validation items; with `refit` once more on all known items."""
    validate = _validator(study, config) if len(study.split.valid) else None
    train = study.split.train
    fit = train_ncf(
        train[:, 0], train[:, 1], study.trained, service, config.ncf, seed, validate, on_epoch
    )
    if not config.refit or validate is None:
        return fit
    rows = np.concatenate([train, study.split.valid])
    again = config.ncf.model_copy(update={"epochs": fit.epoch})
    second = train_ncf(rows[:, 0], rows[:, 1], study.seen, service, again, seed)
    return NcfFit(
        second.model,
        second.service,
        fit.epoch,
        fit.history,
        fit.seconds + second.seconds,
        second.samples_per_second,
    )


def _validator(study: Problem, config: RecommendConfig) -> Callable[[NeuMF, Tensor | None], float]:
    """Mean ndcg@10 of validation items; test items stay candidates like any other."""
    rng = np.random.default_rng(0)
    valid = study.split.valid
    if len(valid) > config.valid_users:
        valid = valid[np.sort(rng.choice(len(valid), config.valid_users, replace=False))]
    if config.valid_protocol == "full":
        return lambda model, service: float(
            reward(full_ranks(model, valid, study.trained, service)[0], 10).mean()
        )
    user, item = valid[:, 0], valid[:, 1]
    count = min(config.sampled_negatives, int(free_items(study.trained, user, item).min()))
    candidates = draw_candidates(study.trained, user, item, count, rng)
    return lambda model, service: float(
        reward(sampled_ranks(model, valid, candidates, service), 10).mean()
    )


def _best_valid(fit: NcfFit) -> float:
    """Validation ndcg@10 of the epoch that was kept; 0 without validation."""
    return max((row.get("valid", 0.0) for row in fit.history), default=0.0)


@dataclass(frozen=True)
class _Ranked:
    """Ranks of one trained network on all test rows."""

    full: np.ndarray  # (tests,)
    sampled: np.ndarray  # (tests,)
    lists: np.ndarray  # (tests, list_length)

    def means(self, study: Problem, config: RecommendConfig) -> dict[str, float]:
        out: dict[str, float] = {}
        segments = study.segments(config.few)
        for name, rows in segments.items():
            if rows.any():
                values = rank_metrics(self.full[rows])
                out |= {f"{name}.{metric}": float(v.mean()) for metric, v in values.items()}
        warm = segments["full"]
        values = rank_metrics(self.sampled[warm] if warm.any() else self.sampled)
        out |= {f"sampled.{metric}": float(v.mean()) for metric, v in values.items()}
        return out | {"full.coverage": coverage(self.lists, len(study.items))}


def _rank(fit: NcfFit, study: Problem, config: RecommendConfig) -> _Ranked:
    service, test = fit.service, study.split.test
    full, lists = full_ranks(
        fit.model, test, study.seen, service, study.unknown, top=config.list_length
    )
    sampled = sampled_ranks(fit.model, test, study.candidates, service, study.unknown)
    return _Ranked(full, sampled, lists)


def _collect(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _units(ranked: list[_Ranked], segments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Per-user values (seeds, users of the segment), for paired tests."""
    out: dict[str, np.ndarray] = {}
    for name, rows in segments.items():
        per_seed = [rank_metrics(result.full[rows], (5, 10)) for result in ranked]
        for metric in ("ndcg_at_5", "ndcg_at_10", "hit_at_10", "mrr"):
            out[f"{name}.{metric}"] = np.stack([v[metric] for v in per_seed]).astype(np.float32)
    warm = segments["full"]
    per_seed = [rank_metrics(result.sampled[warm], (5, 10)) for result in ranked]
    for metric in ("ndcg_at_5", "ndcg_at_10", "hit_at_10"):
        out[f"sampled.{metric}"] = np.stack([v[metric] for v in per_seed]).astype(np.float32)
    return {name: value for name, value in out.items() if value.shape[1]}


def _segment_table(units: dict[str, np.ndarray], segments: dict[str, np.ndarray]) -> pl.DataFrame:
    """One row per segment and metric with a bootstrap interval over its users."""
    rows = []
    for name, values in units.items():
        low, high = bootstrap_interval(values)
        segment, _, metric = name.partition(".")
        rows.append(
            {
                "segment": segment,
                "metric": metric,
                "users": values.shape[1],
                "value": float(values.mean()),
                "low": low,
                "high": high,
                "seed_deviation": float(values.mean(1).std()),
            }
        )
    return pl.DataFrame(rows)


def _reference(name: str, study: Problem, config: RecommendConfig) -> dict[str, float]:
    """Metrics of a recommender without a graph, on the same split."""
    ranks = reference_ranks(study, name, config.list_length)
    return _Ranked(ranks.full, ranks.sampled, ranks.lists).means(study, config)


def reference_report(
    name: str,
    study: Problem,
    config: RecommendConfig,
    *,
    seeds: tuple[int, ...] = (0,),
    data: str = "",
) -> Report:
    """Popularity, ALS or BPR as a report of its own, to be compared with the others."""
    ranks = [reference_ranks(study, name, config.list_length, seed) for seed in seeds]
    ranked = [_Ranked(r.full, r.sampled, r.lists) for r in ranks]
    segments = study.segments(config.few)
    units = _units(ranked, segments)
    return Report(
        task="recommend",
        method=name,
        data=data,
        seeds=seeds,
        by_seed=_collect([result.means(study, config) for result in ranked]),
        units=units,
        unit_digest=study.digest,
        cost={"train_seconds": float(np.mean([r.seconds for r in ranks])), "bytes": 0.0},
        tables={"segments": _segment_table(units, segments)},
        details={"users": len(study.users), "items": len(study.items), "setting": ranks[0].setting},
    )


def _logger(run: Run, seed: int) -> Callable[[int, dict[str, float]], None]:
    def log(epoch: int, row: dict[str, float]) -> None:
        run.metrics({f"seed{seed}.{name}": value for name, value in row.items()}, epoch)

    return log
