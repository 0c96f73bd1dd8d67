"""How sure a value is and whether two methods differ: bootstrap over units and trainings, Wilcoxon.

Methods measured on the same units share the draws of units, so that the difference of two methods
is taken draw by draw (paired). Trainings are drawn again per method: their randomness is its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from medapps.comparison.measure import Matrix, Measured

BLOCK_NUMBERS = 1 << 22
"""Counts held in memory at once."""
MOST_PICKS, LEAST_DRAWS = 2 * 10**9, 200
"""Millions of units get fewer draws: their intervals are narrow anyway."""


def unit_counts(units: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Blocks float64 (draws in the block, units): how often each unit is in each draw."""
    block = max(1, BLOCK_NUMBERS // max(units, 1))
    for start in range(0, draws, block):
        size = min(block, draws - start)
        pick = rng.integers(0, units, (size, units))
        pick += np.arange(size)[:, None] * units
        counts = np.bincount(pick.ravel(), minlength=size * units)
        yield counts.reshape(size, units).astype(np.float64)


def draw_values(many: Sequence[Measured], *, draws: int = 2000, seed: int = 0) -> list[np.ndarray]:
    """Per method float64 (draws,): its metric on the same resampled units."""
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
        out.append(_over_trainings(by_run, one.clusters, own))
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
