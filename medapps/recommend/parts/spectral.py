"""A spectral filter: what users have, projected on the main directions of all purchases.

    X' = diag(n_u^-a) X diag(n_i^-b) = U diag(s) V^T,   f = s^2 / (s^2 + filter s_64^2)
    score = x_u diag(n_i^-b) V diag(f) V^T diag(n_i^b)

With a = b = 0 and all directions this is a ridge regression of items on items (EASE without its
zero diagonal), kept as a few hundred numbers per item. It is fitted in seconds, and a user who was
not there needs no solver.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_matrix, diags

from medapps.recommend.parts.low_rank import LowRank

MOST = 1024
"""Directions that are looked for at most."""
NUMBERS = 1 << 23
"""Directions times items that are kept at most, 32 MiB; but at least SCALE directions."""
SCALE = 64
"""The filter is in terms of the singular value at this place."""


@dataclass(frozen=True)
class Spectral:
    """Directions of items, their filter, and what the purchase of an item counts."""

    basis: np.ndarray  # (items, factors) float32: V
    filter: np.ndarray  # (factors,) float32: f
    weight: np.ndarray  # (items,) float32: n_i^-b
    items: np.ndarray = field(init=False)  # (items, factors) float32: diag(n_i^b) V

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", self.basis / self.weight[:, None])

    def vectors(self, purchases: csr_matrix) -> np.ndarray:
        """float32 (rows, factors) of users with these purchases."""
        return np.asarray((purchases @ diags(self.weight)) @ self.basis * self.filter, np.float32)

    def part(self, purchases: csr_matrix) -> LowRank:
        """The scores of users with these purchases."""
        return _Folded(purchases, self.items, self)


@dataclass(frozen=True)
class _Folded(LowRank):
    """Vectors of users made from their purchases when they are asked for."""

    users: csr_matrix
    spectral: Spectral

    def vectors(self, users: np.ndarray) -> np.ndarray:
        return self.spectral.vectors(self.users[users])


@dataclass(frozen=True)
class Decomposition:
    """Singular values and item directions of one weighing of the purchases."""

    values: np.ndarray  # (rank,) descending
    basis: np.ndarray  # (items, rank) float32
    weight: np.ndarray  # (items,) float32

    def cut(self, factors: int, strength: float) -> Spectral:
        """The first directions with a filter of this strength."""
        square = self.values[:factors].astype(np.float64) ** 2
        level = strength * float(self.values[min(SCALE, len(self.values)) - 1]) ** 2
        kept = np.ascontiguousarray(self.basis[:, :factors])
        return Spectral(kept, (square / (square + level)).astype(np.float32), self.weight)


def decompose(
    train: csr_matrix, user_power: float, item_power: float, factors: int = MOST, seed: int = 0
) -> Decomposition:
    """The main directions of the purchases, weighed by how many a user and an item has."""
    from sklearn.utils.extmath import randomized_svd  # a server does not need so much memory

    users = np.maximum(np.diff(train.indptr), 1.0) ** -user_power
    bought = np.bincount(train.indices, minlength=train.shape[1])
    items = (np.maximum(bought, 1.0) ** -item_power).astype(np.float32)
    scaled = csr_matrix(diags(users.astype(np.float32)) @ train @ diags(items), dtype=np.float32)
    most = min(factors, MOST, max(SCALE, NUMBERS // train.shape[1]))
    rank = max(1, min(most, *(n - 1 for n in train.shape)))
    _, values, back = randomized_svd(scaled, rank, n_iter=4, random_state=seed)
    positive = values > 1e-6 * values[0]
    basis = np.ascontiguousarray(back.T[:, positive], np.float32)
    return Decomposition(values[positive], basis, items)
