"""Metrics as functions of sums over units, so that resampling units is one matrix product.

The mean of a value is its sum over n. Macro F1 follows from three sums per class: users of the
class, guesses of the class, and both. Whatever is such a function can be drawn again exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from medapps.report import Report

Matrix: TypeAlias = Any
"""A dense or sparse matrix; scipy has no types for the latter."""
LOWER_IS_BETTER = frozenset({"mean_rank", "loss", "calibration_error"})


@dataclass(frozen=True)
class Measured:
    """One metric of one method, on every unit, in every run."""

    name: str
    """The method and its size: what makes its trainings its own."""
    features: tuple[Matrix, ...]
    """One (units, k) matrix per run."""
    finish: Callable[[np.ndarray, int], np.ndarray]
    """Sums of the features (..., k) and the number of units to the metric (...)."""
    clusters: tuple[int, ...]
    """Per run: the training that it belongs to; runs of one training are drawn together."""
    per_unit: np.ndarray | None
    """float64 (units,): mean over runs, where the metric is a mean of unit values."""

    @property
    def units(self) -> int:
        return int(self.features[0].shape[0])

    @property
    def value(self) -> float:
        """Mean over trainings of the mean over their runs."""
        runs = np.array([float(self.finish(_sums(f), self.units)) for f in self.features])
        of = np.asarray(self.clusters)
        return float(np.mean([runs[of == training].mean() for training in np.unique(of)]))


def _sums(features: Matrix) -> np.ndarray:
    return np.asarray(features.sum(axis=0), np.float64).reshape(-1)


def measured(reports: Sequence[Report], metric: str) -> Measured | None:
    """What the reports of one method hold about a metric per unit; None where they hold nothing."""
    name = f"{reports[0].method}/{reports[0].dim}"
    rows = list(enumerate(reports))
    if all(metric in report.units for report in reports):
        values = [(c, row) for c, r in rows for row in np.asarray(r.units[metric], np.float64)]
        return Measured(
            name,
            tuple(value[:, None] for _, value in values),
            lambda sums, units: sums[..., 0] / units,
            tuple(cluster for cluster, _ in values),
            np.mean([value for _, value in values], axis=0),
        )
    if metric != "f1_macro" or not all({"truth", "guess"} <= set(r.units) for r in reports):
        return None
    classes = 1 + max(int(np.max(r.units[part])) for r in reports for part in ("truth", "guess"))
    pairs = [
        (cluster, truth, guess)
        for cluster, report in rows
        for truth, guess in zip(report.units["truth"], report.units["guess"], strict=True)
    ]
    return Measured(
        name,
        tuple(_class_counts(np.asarray(t), np.asarray(g), classes) for _, t, g in pairs),
        lambda sums, units: f1_macro(sums),
        tuple(cluster for cluster, _, _ in pairs),
        None,
    )


def _class_counts(truth: np.ndarray, guess: np.ndarray, classes: int) -> Matrix:
    """(units, 3 classes): one where the unit's truth, its guess, and both are the class."""
    from scipy import sparse

    truth, guess = truth.astype(np.int64), guess.astype(np.int64)
    unit = np.arange(len(truth))
    right = truth == guess
    row = np.concatenate([unit, unit, unit[right]])
    column = np.concatenate([truth, classes + guess, 2 * classes + truth[right]])
    return sparse.csr_array(
        (np.ones(len(row), np.float32), (row, column)), shape=(len(truth), 3 * classes)
    )


def f1_macro(sums: np.ndarray) -> np.ndarray:
    """Macro F1 from (..., 3 classes) sums, over the classes that occur in truth or guess."""
    truth, guess, right = np.split(np.asarray(sums, np.float64), 3, axis=-1)
    both = truth + guess
    f1 = np.divide(2 * right, both, out=np.zeros_like(both), where=both > 0)
    return f1.sum(-1) / np.maximum((both > 0).sum(-1), 1)
