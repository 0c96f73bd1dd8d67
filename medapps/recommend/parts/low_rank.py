"""Scores that are products of a user's and an item's vector, and their moments without the scores.

The mean of a user's scores over all items is z . mean(q), their variance z^T cov(q) z, so that a
sum of standardised parts needs one matrix product per part and no pass over its scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import blas


@dataclass(frozen=True)
class LowRank:
    """Vectors of users and items; a score is users[u] . items[i]."""

    users: np.ndarray  # (users, width) float32
    items: np.ndarray  # (items, width) float32

    def vectors(self, users: np.ndarray) -> np.ndarray:
        """float32 (len(users), width)."""
        return self.users[users]

    def __call__(self, users: np.ndarray) -> np.ndarray:
        """float32 (len(users), items)."""
        return self.vectors(users) @ self.items.T

    @cached_property
    def spread(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (width,) and covariance (width, width) of the items' vectors."""
        mean = self.items.mean(0, dtype=np.float64)
        centred = self.items - mean.astype(np.float32)
        return mean, (centred.T @ centred).astype(np.float64) / len(centred)

    def moments(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over all items, float32 (n,) each, of users' vectors."""
        mean, covariance = self.spread
        wide = vectors.astype(np.float64)
        variance = np.einsum("ij,ij->i", wide @ covariance, wide)
        deviation = np.sqrt(np.maximum(variance, 0))
        return (wide @ mean).astype(np.float32), deviation.astype(np.float32)


def add_product(vectors: np.ndarray, items: np.ndarray, out: np.ndarray) -> None:
    """out (n, items) += vectors (n, width) @ items (items, width) transposed, in place."""
    done = blas.sgemm(1.0, items.T, vectors.T, beta=1.0, c=out.T, trans_a=True, overwrite_c=True)
    assert np.shares_memory(done, out), "the product was written elsewhere"
