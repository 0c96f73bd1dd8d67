"""User labelling on the server: which class does a user belong to, read from its vector."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import polars as pl

from medapps.crop.service import (
    Scaling,
    Source,
    UserVectors,
    random_control,
    shuffled_control,
    user_vectors,
)
from medapps.evaluate.metrics import (
    calibration,
    class_scores,
    confusion,
    label_metrics,
    log_loss,
)
from medapps.evaluate.statistics import bootstrap_f1_macro, bootstrap_interval
from medapps.graph.labels import Labels
from medapps.graph.split import TEST, TRAIN, VALID, digest_arrays, name_hash, stratified
from medapps.label.config import LabelConfig
from medapps.label.figures import calibration_figure, confusion_figure
from medapps.label.model import LabelModel
from medapps.label.network import MlpSetting, choose, train_mlps
from medapps.label.probe import linear_probe
from medapps.report import Report
from medapps.tracking import NO_RUN, Run


@dataclass(frozen=True)
class LabelResult:
    """What one labelling produces: the report, a model for new users, and who was where."""

    report: Report
    model: LabelModel
    split: pl.DataFrame  # user, part


def label_users(
    source: Source,
    labels: pl.DataFrame,
    config: LabelConfig | None = None,
    *,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    run: Run = NO_RUN,
    data: str = "",
) -> Report:
    """Train and test the labeller on a crop's user vectors (paper section on user labelling)."""
    return train_labeller(source, labels, config, seeds=seeds, run=run, data=data).report


def train_labeller(
    source: Source,
    labels: pl.DataFrame,
    config: LabelConfig | None = None,
    *,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    run: Run = NO_RUN,
    data: str = "",
) -> LabelResult:
    """`label_users` with the trained model and the split beside the report."""
    config = config or LabelConfig()
    known = Labels.of(labels, config.column, config.rare)
    vectors = user_vectors(source, known.users)
    hashes = name_hash(known.users)
    part = stratified(hashes, known.label, config.split_seed)
    digest = digest_arrays(hashes, known.label, part)
    began = time.perf_counter()
    setting, fitted = _choose_and_train(vectors, known, part, config, seeds)
    seconds = time.perf_counter() - began
    matrices = fitted.matrices
    by_seed = _by_seed([label_metrics(matrix) for matrix in matrices])
    truth = known.label[part == TEST]
    guesses = fitted.probability.argmax(2)  # (seeds, test users)
    mean_probability = fitted.probability.mean(0)
    units = {
        "accuracy": (guesses == truth).astype(np.float32),
        "truth": np.broadcast_to(truth, guesses.shape).astype(np.float32),  # for macro F1
        "guess": guesses.astype(np.float32),
    }
    beside = _beside(vectors, known, part, config, seeds, setting)
    low, high = bootstrap_interval(units["accuracy"])
    f1_low, f1_high = bootstrap_f1_macro(truth, guesses)
    tables = {
        "classes": _class_table(known.classes, matrices),
        "confusion": _confusion_table(known.classes, matrices),
        "calibration": _calibration_table(truth, mean_probability),
        "beside": _beside_table(vectors.method, by_seed, beside),
    }
    details = {
        "label": known.column,
        "classes": known.classes,
        "users": len(known.label),
        "missing_users": vectors.missing,
        "test_users": len(truth),
        "notes": known.notes,
        "setting": {"dropout": setting.dropout, "weight_decay": setting.weight_decay},
        "interval": {"accuracy": [low, high], "f1_macro": [f1_low, f1_high]},
        "calibration_error": calibration(truth, mean_probability)[3],
        "beside": beside,
        "majority": beside["majority"]["accuracy"],
    }
    cost = {"train_seconds": seconds, "bytes": float(vectors.values.nbytes)}
    report = Report(
        "label",
        vectors.method,
        vectors.dim,
        data,
        seeds,
        by_seed,
        units,
        digest,
        cost,
        tables,
        details,
    )
    _record(run, report, matrices.mean(0), truth, mean_probability)
    model = LabelModel(
        known.column,
        tuple(known.classes),
        vectors.dim,
        vectors.method,
        fitted.scaling,
        fitted.weights,
    )
    names = np.array(["train", "valid", "test"])[part]
    split = pl.DataFrame({"user": known.users.names(), "part": names})
    return LabelResult(report, model, split)


@dataclass(frozen=True)
class _Fitted:
    """Models of all seeds under one setting, and what they say about the test users."""

    scaling: Scaling
    weights: dict[str, np.ndarray]  # w1, b1, w2, b2, each with seeds first
    probability: np.ndarray  # (seeds, test users, classes)
    matrices: np.ndarray  # (seeds, classes, classes)


def _choose_and_train(
    vectors: UserVectors,
    labels: Labels,
    part: np.ndarray,
    config: LabelConfig,
    seeds: tuple[int, ...],
    settings: tuple[MlpSetting, ...] | None = None,
) -> tuple[MlpSetting, _Fitted]:
    """Pick dropout and decay by two seeds on validation users, then train all seeds."""
    if settings is None:
        settings = tuple(MlpSetting(d, w) for d in config.dropout for w in config.weight_decay)
    scaling = Scaling.fit(
        vectors.values[(part == TRAIN) & vectors.known], whole=config.scaling == "whole"
    )
    x, y, classes = scaling.apply(vectors.values, vectors.known), labels.label, len(labels.classes)
    train, valid, test = (np.flatnonzero(part == p) for p in (TRAIN, VALID, TEST))
    weight = None
    if config.class_weights:
        count = np.bincount(y[train], minlength=classes)
        weight = len(train) / (classes * np.maximum(count, 1))
    data = (x[train], y[train], x[valid], y[valid], classes)
    if len(settings) > 1:
        few = seeds[:2]
        trial = train_mlps(*data, few, settings, **_training(config), class_weight=weight)
        loss = [
            np.mean(
                [log_loss(trial.probabilities(x[valid], s, j), y[valid]) for s in range(len(few))]
            )
            for j in range(len(settings))
        ]
        settings = (settings[choose(trial.valid.mean(0), np.array(loss), len(valid))],)
    fit = train_mlps(*data, seeds, settings, **_training(config), class_weight=weight)
    probability = np.stack([fit.probabilities(x[test], s, 0) for s in range(len(seeds))])
    guess = probability.argmax(2)
    matrices = np.stack([confusion(y[test], row, classes) for row in guess])
    weights = {"w1": fit.w1[:, 0], "b1": fit.b1[:, 0], "w2": fit.w2[:, 0], "b2": fit.b2[:, 0]}
    return settings[0], _Fitted(scaling, weights, probability, matrices)


def _training(config: LabelConfig) -> dict:
    return config.model_dump(include={"hidden", "learning_rate", "epochs", "patience", "batch"})


def _beside(
    vectors: UserVectors,
    labels: Labels,
    part: np.ndarray,
    config: LabelConfig,
    seeds: tuple[int, ...],
    setting: MlpSetting,
) -> dict[str, dict[str, float]]:
    """What a result is worth: majority class, a linear probe, random and shuffled vectors."""
    classes = len(labels.classes)
    truth = labels.label[part == TEST]
    common = np.bincount(labels.label[part == TRAIN], minlength=classes).argmax()
    out = {"majority": label_metrics(confusion(truth, np.full_like(truth, common), classes))}
    if not config.controls:
        return out
    out["linear_probe"] = linear_probe(vectors, labels, part, config.scaling == "whole")
    for name, control in (("random", random_control), ("shuffled", shuffled_control)):
        fake = control(vectors, config.split_seed)
        _, fitted = _choose_and_train(fake, labels, part, config, seeds, (setting,))
        by_seed = _by_seed([label_metrics(matrix) for matrix in fitted.matrices])
        out[name] = {metric: float(np.mean(values)) for metric, values in by_seed.items()}
    return out


def _by_seed(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _class_table(classes: list[str], matrices: np.ndarray) -> pl.DataFrame:
    """Precision, recall, F1 and support per class, means over seeds."""
    scores = [class_scores(matrix) for matrix in matrices]
    columns = {name: np.mean([score[name] for score in scores], axis=0) for name in scores[0]}
    return pl.DataFrame({"class": classes} | columns).with_columns(pl.col("support").cast(pl.Int64))


def _confusion_table(classes: list[str], matrices: np.ndarray) -> pl.DataFrame:
    mean = matrices.mean(0)
    size = len(classes)
    return pl.DataFrame(
        {
            "true": np.repeat(classes, size),
            "predicted": np.tile(classes, size),
            "users": mean.reshape(-1),
        }
    )


def _calibration_table(truth: np.ndarray, probability: np.ndarray) -> pl.DataFrame:
    confidence, accuracy, users, _ = calibration(truth, probability)
    return pl.DataFrame({"confidence": confidence, "accuracy": accuracy, "users": users})


def _beside_table(
    method: str, by_seed: dict[str, list[float]], beside: dict[str, dict[str, float]]
) -> pl.DataFrame:
    rows = [{"method": method} | {name: float(np.mean(v)) for name, v in by_seed.items()}]
    rows += [{"method": name} | values for name, values in beside.items()]
    return pl.DataFrame(rows)


def _record(
    run: Run, report: Report, matrix: np.ndarray, truth: np.ndarray, probability: np.ndarray
) -> None:
    """Put the report into the run: numbers, tables and two figures."""
    run.metrics(report.metrics)
    for name, values in report.by_seed.items():
        run.metric(f"{name}_std", float(np.std(values)))
    for rival, values in report.details["beside"].items():
        run.metrics({f"{rival}.{name}": value for name, value in values.items()})
    for name, table in report.tables.items():
        run.text(table.write_csv(), f"{name}.csv")
    run.figure(confusion_figure(report.details["classes"], matrix), "confusion.png")
    run.figure(calibration_figure(*calibration(truth, probability)), "calibration.png")
