"""A ridge map from service vectors to purchases, in closed form: what the graph alone foretells.

    score = popularity + s_u W,  W = (S^T S + ridge)^-1 S^T (X - popularity)

It serves users without purchases, and costs what a factorisation costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, diags

from medapps.recommend.parts.low_rank import LowRank


@dataclass(frozen=True)
class Service:
    """Vectors that a graph gives to users, and perhaps to items; zeros where it knows nobody."""

    users: np.ndarray  # (users, width) float32
    known_users: np.ndarray  # (users,) bool
    items: np.ndarray | None = None  # (items, width) float32
    known_items: np.ndarray | None = None  # (items,) bool


def standard(vectors: np.ndarray, known: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Centred and divided by the common deviation of the rows in `basis`; zeros where unknown.

    A typical row then has length one, whatever its dimension.
    """
    some = vectors[basis & known].astype(np.float64)
    mean = some.mean(0) if len(some) else np.zeros(vectors.shape[1])
    length = np.sqrt(np.square(some - mean).sum(1).mean()) if len(some) else 1.0
    out = (vectors - mean) / max(length, 1e-12)
    out[~known] = 0
    return out.astype(np.float32)


def user_map(
    service: np.ndarray,  # (users, width), standardised
    train: csr_matrix,
    ridge: float = 0.01,  # in parts of the users that are fitted
) -> LowRank:
    """Scores of all items from a user's service vector; fitted on users with purchases."""
    has = np.diff(train.indptr) > 0
    known, rows = service[has], _even(train[has])
    mean = np.asarray(rows.mean(0), np.float32).reshape(-1)
    centre = known.mean(0)
    left = known - centre
    weights = _ridge(left, ridge, np.asarray((rows.T @ left).T))  # centred, so the mean drops out
    ones = np.ones((len(service), 1), np.float32)
    return LowRank(
        np.concatenate([service - centre, ones], 1),
        np.ascontiguousarray(np.concatenate([weights, mean[None]]).T),
    )


def _even(train: csr_matrix) -> csr_matrix:
    """Rows of length one, so that no user counts for many."""
    count = np.maximum(np.diff(train.indptr), 1).astype(np.float32)
    return csr_matrix(diags(1 / np.sqrt(count)) @ train, dtype=np.float32)


def _ridge(left: np.ndarray, ridge: float, right: np.ndarray) -> np.ndarray:
    gram = left.T.astype(np.float64) @ left
    gram.flat[:: len(gram) + 1] += ridge * len(left)
    return np.linalg.solve(gram, right).astype(np.float32)
