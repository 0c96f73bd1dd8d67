"""User labelling on the server: which class does a user belong to, read from its vector."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from medapps.crop.service import (
    Source,
    UserVectors,
    control,
    user_vectors,
)
from medapps.errors import MedappsError
from medapps.evaluate.metrics import (
    calibration,
    class_scores,
    confusion,
    label_metrics,
    log_loss,
)
from medapps.evaluate.statistics import bootstrap_f1_macro, bootstrap_interval
from medapps.graph.split import (
    PARTS,
    TEST,
    TRAIN,
    VALID,
    digest_arrays,
    name_hash,
    stratified,
)
from medapps.graph.user_tables import Labels
from medapps.label.config import LabelConfig
from medapps.label.model import HIDDEN_NUMBERS, WEIGHTS, LabelModel
from medapps.label.network import Examples, MlpSetting, choose, linear_probe, train_mlps
from medapps.memory import fitting
from medapps.report import Report
from medapps.tracking import NO_RUN, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    known, vectors, part = learnable(source, labels, config, len(seeds))
    hashes = name_hash(known.users)
    examples, scaling = Examples.of(vectors, known, part, config)
    began = time.perf_counter()
    setting = _choose_setting(examples, config, seeds)
    fitted = _Fitted.of(examples, seeds, setting, config)
    seconds = time.perf_counter() - began
    beside = {"majority": _majority(examples)}
    if config.controls:
        beside["linear_probe"] = linear_probe(examples)
    del examples  # a control takes as much again
    for name in ("random", "shuffled") if config.controls else ():
        fake, _ = Examples.of(control(name, vectors, config.split_seed), known, part, config)
        values = _Fitted.of(fake, seeds, setting, config).by_seed
        beside[name] = {metric: float(np.mean(v)) for metric, v in values.items()}
    truth, guesses = fitted.truth, fitted.probability.argmax(2)  # (seeds, test users)
    calibrated = calibration(truth, fitted.probability.mean(0))
    units = {
        "accuracy": (guesses == truth).astype(np.float32),
        "truth": np.broadcast_to(truth, guesses.shape).astype(np.float32),  # for macro F1
        "guess": guesses.astype(np.float32),
    }
    report = Report(
        task="label",
        method=vectors.method,
        dim=vectors.dim,
        data=data,
        seeds=seeds,
        by_seed=fitted.by_seed,
        units=units,
        unit_digest=digest_arrays(hashes, known.label, part),
        cost={"train_seconds": seconds, "bytes": float(vectors.values.nbytes)},
        tables=_tables(known.classes, fitted.matrices)
        | {
            "calibration": pl.DataFrame(dict(zip(_CALIBRATION, calibrated, strict=False))),
            "beside": _beside_table(vectors.method, fitted.by_seed, beside),
        },
        details={
            "label": known.column,
            "classes": known.classes,
            "users": len(known.label),
            "missing_users": vectors.missing,
            "test_users": len(truth),
            "notes": known.notes,
            "setting": asdict(setting),
            "interval": {
                "accuracy": list(bootstrap_interval(units["accuracy"])),
                "f1_macro": list(bootstrap_f1_macro(truth, guesses)),
            },
            "calibration_error": calibrated[3],
            "beside": beside,
            "majority": beside["majority"]["accuracy"],
        },
    )
    _record(run, report)
    run.figure(confusion_figure(known.classes, fitted.matrices.mean(0)), "confusion.png")
    run.figure(calibration_figure(*calibrated), "calibration.png")
    classes = tuple(known.classes)
    model = LabelModel(known.column, classes, vectors.dim, vectors.method, scaling, fitted.weights)
    names = np.array(list(PARTS))[part]
    split = pl.DataFrame({"user": known.users.names(), "part": names})
    return LabelResult(report, model, split)


_CALIBRATION = ("confidence", "accuracy", "users")


def needed_bytes(
    users: int, width: int, classes: int, seeds: int, config: LabelConfig
) -> dict[str, int]:
    """Bytes by purpose that labelling takes beyond the labels themselves."""
    models = max(seeds, min(2, seeds) * len(config.dropout) * len(config.weight_decay))
    row = models * config.hidden
    hidden = max(min(HIDDEN_NUMBERS, users // 10 * row), min(users, config.batch) * row)
    return {
        "vectors": 12 * users * (width + 1),  # as they are, scaled, and a part's or a control's
        "hidden layers": 12 * hidden,
        "predictions": users * seeds * (2 * classes + 28),
        "names": 120 * users,
        "linear probe": 14 * users * classes if config.controls else 0,
    }


def learnable(
    source: Source, table: pl.DataFrame, config: LabelConfig, seeds: int
) -> tuple[Labels, UserVectors, np.ndarray]:
    """Labels, vectors and parts of users; refuses what does not fit into memory, and labels of
    which the graph knows too few training users to tell classes apart.
    """
    labels = Labels.of(table, config.column, config.rare)
    width = source.vectors(labels.users.names(np.zeros(1, np.int64)))[0].shape[1]
    fitting(
        "Labelling",
        needed_bytes(len(labels.label), width, len(labels.classes), seeds, config),
        [
            f"a smaller --dim (now {source.dim})",
            "--set label.controls=false",
            "fewer labelled users",
        ],
    )
    vectors = user_vectors(source, labels.users)
    part = stratified(name_hash(labels.users), labels.label, config.split_seed)
    known = np.unique(labels.label[(part == TRAIN) & vectors.known])
    if len(known) > 1:
        return labels, vectors, part
    raise MedappsError(
        f"There is nothing to learn: of {len(labels.label)} labelled users the graph knows "
        f"{int(vectors.known.sum())}, and those to train on have "
        f"{'one class only' if len(known) else 'no vectors'}.",
        fix="Check that both files name users the same way, e.g. with medapps data check.",
    )


@dataclass(frozen=True)
class _Fitted:
    """Models of all seeds under one setting, and what they say about the test users."""

    weights: dict[str, np.ndarray]  # w1, b1, w2, b2, each with seeds first
    truth: np.ndarray  # (test users,)
    probability: np.ndarray  # (seeds, test users, classes)
    matrices: np.ndarray  # (seeds, classes, classes)

    @classmethod
    def of(
        cls, examples: Examples, seeds: tuple[int, ...], setting: MlpSetting, config: LabelConfig
    ) -> _Fitted:
        fit = train_mlps(examples, seeds, (setting,), config)
        x, y = examples.of_part(TEST)
        probability = np.stack([fit.probabilities(x, seed, 0) for seed in range(len(seeds))])
        matrices = [confusion(y, guess, examples.classes) for guess in probability.argmax(2)]
        weights = {name: getattr(fit, name)[:, 0] for name in WEIGHTS}
        return cls(weights, y, probability, np.stack(matrices))

    @property
    def by_seed(self) -> dict[str, list[float]]:
        rows = [label_metrics(matrix) for matrix in self.matrices]
        return {name: [row[name] for row in rows] for name in rows[0]}


def _choose_setting(examples: Examples, config: LabelConfig, seeds: tuple[int, ...]) -> MlpSetting:
    """Dropout and weight decay, chosen by two seeds on validation users."""
    settings = tuple(MlpSetting(d, w) for d in config.dropout for w in config.weight_decay)
    if len(settings) == 1:
        return settings[0]
    few = seeds[:2]
    trial = train_mlps(examples, few, settings, config)
    x, y = examples.of_part(VALID)
    loss = [
        np.mean([log_loss(trial.probabilities(x, s, j), y) for s in range(len(few))])
        for j in range(len(settings))
    ]
    return settings[choose(trial.valid.mean(0), np.array(loss), len(y))]


def _majority(examples: Examples) -> dict[str, float]:
    """Metrics of always guessing the commonest class."""
    common = np.bincount(examples.of_part(TRAIN)[1], minlength=examples.classes).argmax()
    truth = examples.of_part(TEST)[1]
    return label_metrics(confusion(truth, np.full_like(truth, common), examples.classes))


def _tables(classes: list[str], matrices: np.ndarray) -> dict[str, pl.DataFrame]:
    """Precision, recall, F1 and support per class, and the confusion; means over seeds."""
    scores = [class_scores(matrix) for matrix in matrices]
    columns = {name: np.mean([score[name] for score in scores], axis=0) for name in scores[0]}
    by_class = pl.DataFrame({"class": classes} | columns)
    true, predicted = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    users = matrices.mean(0).reshape(-1)
    return {
        "classes": by_class.with_columns(pl.col("support").cast(pl.Int64)),
        "confusion": pl.DataFrame({"true": true, "predicted": predicted, "users": users}),
    }


def _beside_table(
    method: str, by_seed: dict[str, list[float]], beside: dict[str, dict[str, float]]
) -> pl.DataFrame:
    rows = [{"method": method} | {name: float(np.mean(v)) for name, v in by_seed.items()}]
    rows += [{"method": name} | values for name, values in beside.items()]
    return pl.DataFrame(rows)


def _record(run: Run, report: Report) -> None:
    """Put the numbers and tables of a report into the run."""
    run.metrics(report.metrics)
    for name, values in report.by_seed.items():
        run.metric(f"{name}_std", float(np.std(values)))
    for baseline, values in report.details["beside"].items():
        run.metrics({f"{baseline}.{name}": value for name, value in values.items()})
    for name, table in report.tables.items():
        run.text(table.write_csv(), f"{name}.csv")


def confusion_figure(classes: Sequence[str], matrix: np.ndarray) -> Figure:
    """Share of each true class that was predicted as each class."""
    from matplotlib.figure import Figure

    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(1.5 + 0.45 * len(classes), 1.2 + 0.45 * len(classes)), layout="tight")
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(classes) <= 20:
        for row, column in np.ndindex(*share.shape):
            shade = "white" if share[row, column] > 0.5 else "black"
            text = f"{share[row, column]:.2f}".lstrip("0")
            axes.text(column, row, text, ha="center", va="center", color=shade, fontsize=7)
    return figure


def calibration_figure(
    confidence: np.ndarray, accuracy: np.ndarray, users: np.ndarray, error: float
) -> Figure:
    """Accuracy over confidence; a calibrated model lies on the diagonal."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="tight")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    filled = users > 0
    axes.plot(confidence[filled], accuracy[filled], marker="o")
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"calibration error {error:.3f}")
    return figure
