"""Quality measures of the two tasks, as plain functions over NumPy arrays."""

from __future__ import annotations

import numpy as np

LOWER_IS_BETTER = frozenset({"mean_rank", "loss", "calibration_error"})


def confusion(truth: np.ndarray, guess: np.ndarray, classes: int) -> np.ndarray:
    """Counts (classes, classes): row the true class, column the predicted one."""
    flat = np.bincount(truth.astype(np.int64) * classes + guess, minlength=classes * classes)
    return flat.reshape(classes, classes)


def f1_macro(support: np.ndarray, guessed: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Macro F1 (...) from counts per class (..., classes).

    Averages over classes that occur in truth or guess, as scikit-learn does.
    """
    both = support + guessed
    f1 = np.divide(2.0 * hits, both, out=np.zeros(both.shape), where=both > 0)
    return f1.sum(-1) / np.maximum((both > 0).sum(-1), 1)


def f1_second(support: np.ndarray, guessed: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """F1 (...) of the second of two classes, from counts per class (..., 2)."""
    return _ratio(2.0 * hits[..., 1], (support + guessed)[..., 1])


def matthews(support: np.ndarray, guessed: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Matthews' correlation (...) of two classes from counts per class, 0 where it has none."""
    (t0, t1), (g0, g1) = np.moveaxis(support, -1, 0), np.moveaxis(guessed, -1, 0)
    return _ratio((t0 + t1) * hits[..., 1] - t1 * g1, np.sqrt(t0 * t1 * g0 * g1))


def pearson(sums: np.ndarray, units: int) -> np.ndarray:
    """Pearson's correlation (...) from sums (..., 5) of y, x, yy, xx, xy, 0 where it has none."""
    y, x, yy, xx, xy = np.moveaxis(np.asarray(sums, np.float64), -1, 0)
    spread = np.maximum(units * yy - y * y, 0) * np.maximum(units * xx - x * x, 0)
    return _ratio(units * xy - x * y, np.sqrt(spread))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(np.shape(below)), where=below > 0)


FROM_CLASSES = {"f1_macro": f1_macro, "f1": f1_second, "mcc": matthews}
"""Metrics that follow from counts of truths, guesses and hits per class."""


def class_scores(matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall, F1 and support per class; a class without cases or guesses has 0."""
    hits = np.diag(matrix).astype(float)
    support, guessed = matrix.sum(1).astype(float), matrix.sum(0).astype(float)

    def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return np.divide(part, whole, out=np.zeros_like(hits), where=whole > 0)

    return {
        "precision": share(hits, guessed),
        "recall": share(hits, support),
        "f1": share(2 * hits, support + guessed),
        "support": support,
    }


def label_metrics(matrix: np.ndarray) -> dict[str, float]:
    """Accuracy and F1 in its three averages from a confusion matrix.

    Micro equals accuracy because every user has exactly one label.
    """
    scores = class_scores(matrix)
    total = max(float(matrix.sum()), 1.0)
    accuracy = float(np.trace(matrix) / total)
    return {
        "accuracy": accuracy,
        "f1_macro": float(f1_macro(matrix.sum(1), matrix.sum(0), np.diag(matrix))),
        "f1_micro": accuracy,
        "f1_weighted": float((scores["f1"] * scores["support"]).sum() / total),
    }


def batched_f1_macro(truth: np.ndarray, guess: np.ndarray, classes: int) -> np.ndarray:
    """Macro F1 of several guesses (runs, users) against one truth (users,), shape (runs,)."""
    matrices = np.stack([confusion(truth, row, classes) for row in guess])
    return f1_macro(matrices.sum(2), matrices.sum(1), np.diagonal(matrices, axis1=1, axis2=2))


def calibration(
    truth: np.ndarray, probability: np.ndarray, bins: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Mean confidence, accuracy, count per confidence bin; and expected calibration error."""
    guess, confidence = probability.argmax(1), probability.max(1)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins).astype(float)
    safe = np.maximum(count, 1)
    mean = np.bincount(place, weights=confidence, minlength=bins) / safe
    right = np.bincount(place, weights=guess == truth, minlength=bins) / safe
    error = float((count * np.abs(mean - right)).sum() / max(count.sum(), 1))
    return mean, right, count.astype(np.int64), error


def log_loss(probability: np.ndarray, truth: np.ndarray) -> float:
    """Mean negative log probability of the true class; `probability` is (users, classes)."""
    own = probability[np.arange(len(truth)), truth]
    return float(-np.log(np.maximum(own, 1e-12)).mean())


def realistic_rank(better: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Rank from the number of better and of equally scored candidates: the middle of the tie."""
    return 1 + better + equal / 2


def rank_among(own: np.ndarray, others: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Realistic rank (n,) of scores `own` (n, 1) among the `others` (n, k) that count (n, k).

    NaN is the worst score: NaN others come after any number, a NaN of one's own after all others.
    """
    lost = ~(own > -np.inf)
    better = ((others > own) | lost) & counts
    equal = (others == own) & counts & ~lost
    return realistic_rank(better.sum(1), equal.sum(1))


def reward(rank: np.ndarray, k: int) -> np.ndarray:
    """NDCG@k of one relevant item at this rank: 1 / log2(rank + 1), or 0 beyond k."""
    return np.where(rank <= k, 1 / np.log2(rank + 1), 0.0)


def rank_metrics(rank: np.ndarray, cutoffs: tuple[int, ...] = (1, 5, 10)) -> dict[str, np.ndarray]:
    """ndcg and hit at each cutoff and the reciprocal rank, one value per user."""
    out = {f"ndcg_at_{k}": reward(rank, k) for k in cutoffs}
    out |= {f"hit_at_{k}": (rank <= k).astype(float) for k in cutoffs}
    return out | {"mrr": 1 / rank}


def coverage(recommended: np.ndarray, n_items: int) -> float:
    """Share of the catalogue that appears in at least one list of recommendations."""
    shown = recommended[recommended >= 0]
    return len(np.unique(shown)) / max(n_items, 1)
