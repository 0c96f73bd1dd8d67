"""Metrics of lists against one or several test items per user, one value per user.

recall@k     test items in the list / test items
precision@k  test items in the list / k
hit@k        1 if any is in the list
ndcg@k       sum of 1 / log2(place + 1) over that of the ideal list, cut at k too
map@k        mean over the test items of the precision at their place, 0 beyond k
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

CUTOFFS = (5, 10, 20)


def list_metrics(
    lists: np.ndarray,  # (n, length) items, best first; -1 where a list is shorter
    truth: csr_matrix,  # (n, items): what these users took in the test part
    cutoffs: tuple[int, ...] = CUTOFFS,
) -> dict[str, np.ndarray]:
    """float64 (n,) for each `ndcg_at_k`, `recall_at_k`, `hit_at_k`, `precision_at_k`, `map_at_k`.

    A list that is shorter than k counts as if nothing followed. Every user needs a test item.
    """
    found = hits(lists, truth)
    return hit_metrics(found, np.diff(truth.indptr), cutoffs)


def hit_metrics(
    found: np.ndarray, wanted: np.ndarray, cutoffs: tuple[int, ...] = CUTOFFS
) -> dict[str, np.ndarray]:
    """The same from booleans (n, length), best place first, and test items per user (n,)."""
    assert (wanted > 0).all(), "a user without test items has no metrics"
    length = found.shape[1]
    place = np.arange(1, length + 1)
    discount = 1 / np.log2(place + 1)
    running = np.cumsum(found, axis=1)
    gain = np.cumsum(found * discount, axis=1)
    precision = np.cumsum(found * running / place, axis=1)
    ideal = np.cumsum(1 / np.log2(np.arange(1, max(cutoffs) + 1) + 1))
    out: dict[str, np.ndarray] = {}
    for k in cutoffs:
        end = min(k, length) - 1
        out[f"ndcg_at_{k}"] = gain[:, end] / ideal[np.minimum(wanted, k) - 1]
        out[f"recall_at_{k}"] = running[:, end] / wanted
        out[f"hit_at_{k}"] = (running[:, end] > 0).astype(float)
        out[f"precision_at_{k}"] = running[:, end] / k
        out[f"map_at_{k}"] = precision[:, end] / wanted
    return out


def hits(lists: np.ndarray, truth: csr_matrix) -> np.ndarray:
    """Which entries of the lists (n, length) are test items of their row, bool (n, length)."""
    items = truth.shape[1]
    row = np.repeat(np.arange(truth.shape[0], dtype=np.int64), np.diff(truth.indptr))
    keys = np.sort(row * items + truth.indices)
    if not len(keys):
        return np.zeros(lists.shape, bool)
    wanted = np.arange(len(lists), dtype=np.int64)[:, None] * items + lists
    spot = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return (keys[spot] == wanted) & (lists >= 0)
