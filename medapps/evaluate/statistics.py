"""How sure a value is and whether two methods differ: one bootstrap, one paired test.

A metric here is a function of sums over units (users or queries), so that resampling units is one
matrix product: a mean is a sum over n, F1 and Matthews' correlation follow from three sums per
class, Pearson's from five. Methods measured on the same units share the draws of units, so that
their difference is taken draw by draw (paired). Trainings are drawn again per method: their
randomness is its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from medapps.evaluate.metrics import FROM_CLASSES, pearson

Matrix: TypeAlias = Any
"""A dense or sparse matrix; scipy has no types for the latter."""
BLOCK_NUMBERS = 1 << 22
"""Counts held in memory at once."""
MOST_PICKS, LEAST_DRAWS = 2 * 10**9, 200
"""Millions of units get fewer draws: their intervals are narrow anyway."""


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
    per_unit: np.ndarray | None = None
    """float64 (units,): mean over runs, where the metric is a mean of unit values."""

    @classmethod
    def mean(
        cls, runs: Sequence[np.ndarray], name: str = "", clusters: Sequence[int] | None = None
    ) -> Measured:
        """The mean of unit values (units,) of each run."""
        values = [np.asarray(run, np.float64) for run in runs]
        return cls(
            name,
            tuple(value[:, None] for value in values),
            lambda sums, units: sums[..., 0] / units,
            tuple(clusters or [0] * len(values)),
            np.mean(values, axis=0),
        )

    @classmethod
    def from_classes(
        cls,
        runs: Sequence[tuple[np.ndarray, np.ndarray]],
        metric: str = "f1_macro",
        name: str = "",
        clusters: Sequence[int] | None = None,
    ) -> Measured:
        """A metric of the (truth, guess) of each run: class ids of the units, (units,) each."""
        classes = max(2, 1 + max(int(np.max(part)) for run in runs for part in run))
        finish = FROM_CLASSES[metric]
        return cls(
            name,
            tuple(_class_counts(truth, guess, classes) for truth, guess in runs),
            lambda sums, units: finish(*np.split(np.asarray(sums, np.float64), 3, axis=-1)),
            tuple(clusters or [0] * len(runs)),
        )

    @classmethod
    def correlation(
        cls,
        runs: Sequence[tuple[np.ndarray, np.ndarray]],
        name: str = "",
        clusters: Sequence[int] | None = None,
    ) -> Measured:
        """Pearson's correlation of the (target, score) of each run, (units,) each."""
        values = [(np.asarray(y, np.float64), np.asarray(x, np.float64)) for y, x in runs]
        features = tuple(np.stack([y, x, y * y, x * x, x * y], 1) for y, x in values)
        return cls(name, features, pearson, tuple(clusters or [0] * len(runs)))

    @property
    def units(self) -> int:
        return int(self.features[0].shape[0])

    @property
    def value(self) -> float:
        """Mean over trainings of the mean over their runs."""
        sums = [np.asarray(f.sum(axis=0), np.float64).reshape(-1) for f in self.features]
        runs = np.array([float(self.finish(one, self.units)) for one in sums])
        of = np.asarray(self.clusters)
        return float(np.mean([runs[of == training].mean() for training in np.unique(of)]))


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


def unit_counts(units: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Blocks float64 (draws in the block, units): how often each unit is in each draw."""
    block = max(1, BLOCK_NUMBERS // max(units, 1))
    for start in range(0, draws, block):
        size = min(block, draws - start)
        pick = rng.integers(0, units, (size, units))
        pick += np.arange(size)[:, None] * units
        counts = np.bincount(pick.ravel(), minlength=size * units)
        yield counts.reshape(size, units).astype(np.float64)


def draw_values(
    many: Sequence[Measured], *, draws: int = 2000, seed: int = 0, redraw_runs: bool = True
) -> list[np.ndarray]:
    """Per method float64 (draws,): its metric on the same resampled units.

    Trainings (or the runs of a single one) are drawn again too, unless `redraw_runs` is off.
    """
    units = many[0].units
    assert all(one.units == units for one in many), [one.units for one in many]
    matrices = [features for one in many for features in one.features]
    dense = [matrix for matrix in matrices if isinstance(matrix, np.ndarray)]
    together = np.hstack(dense) if dense else None  # mostly single columns: one product for all
    draws = min(draws, max(LEAST_DRAWS, MOST_PICKS // units))
    sums: list[list[np.ndarray]] = [[] for _ in matrices]
    for counts in unit_counts(units, draws, np.random.default_rng(seed)):
        for place, part in zip(sums, _products(counts, matrices, together), strict=True):
            place.append(part)
    left = iter(np.concatenate(parts) for parts in sums)  # (draws, k) per run
    out = []
    for one in many:
        by_run = np.stack([one.finish(next(left), units) for _ in one.features])  # (runs, draws)
        own = np.random.default_rng([seed, zlib.crc32(one.name.encode())])
        out.append(_over_trainings(by_run, one.clusters, own) if redraw_runs else by_run.mean(0))
    return out


def _products(
    counts: np.ndarray, matrices: Sequence[Matrix], together: np.ndarray | None
) -> Iterator[np.ndarray]:
    """counts @ matrix for each; `together` holds the columns of all dense ones."""
    product = counts @ together if together is not None else np.empty((len(counts), 0))
    start = 0
    for matrix in matrices:
        if isinstance(matrix, np.ndarray):
            yield product[:, start : start + matrix.shape[1]]
            start += matrix.shape[1]
        else:
            yield np.asarray((matrix.T @ counts.T).T)


def _over_trainings(
    by_run: np.ndarray, clusters: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """float64 (draws,): means over trainings drawn again; with one training, over its runs."""
    names = np.unique(clusters)
    if len(names) > 1:
        by_run = np.stack([by_run[np.asarray(clusters) == name].mean(0) for name in names])
    runs, draws = by_run.shape
    if runs == 1:
        return by_run[0]
    pick = rng.integers(0, runs, (runs, draws))
    return np.take_along_axis(by_run, pick, axis=0).mean(0)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of draws."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_interval(values: np.ndarray, draws: int = 1000) -> tuple[float, float]:
    """Interval of the mean of (seeds, units) when units are drawn again: it speaks of other users,
    not of other seeds.
    """
    per_unit = values.reshape(-1, values.shape[-1]).mean(0)
    if not len(per_unit):
        return float("nan"), float("nan")
    return interval(draw_values([Measured.mean([per_unit])], draws=draws)[0])


def bootstrap_f1_macro(
    truth: np.ndarray, guesses: np.ndarray, draws: int = 400
) -> tuple[float, float]:
    """The same for the mean macro F1 of several guesses (seeds, units)."""
    measured = Measured.from_classes([(truth, guess) for guess in guesses])
    return interval(draw_values([measured], draws=draws, redraw_runs=False)[0])


def two_sided(differences: np.ndarray) -> float:
    """Bootstrap p-value of "no difference": twice the smaller tail, never zero."""
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (len(differences) + 1))


def wilcoxon(one: np.ndarray, other: np.ndarray) -> float:
    """p-value of the signed-rank test on paired unit values; 1 when no pair differs."""
    from scipy.stats import wilcoxon as signed_rank

    difference = np.asarray(one, np.float64) - other
    if not difference.any():
        return 1.0
    return float(signed_rank(difference).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for asking several questions at once."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    steps = p[order] * (len(p) - np.arange(len(p)))
    out = np.empty(len(p))
    out[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(value) for value in out]
