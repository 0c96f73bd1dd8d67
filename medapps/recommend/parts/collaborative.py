"""Matrix factorisation with a loss over all pairs, by alternating conjugate gradients.

x = z_u . q_i with z_u = p_u + b + A s_u and q_i = r_i + B t_i, and the loss

    a0 sum over all pairs x^2 + sum over purchases ((1 - a0) x^2 - 2 x)
    + sum_u l_u |p_u|^2 + sum_i l_i |r_i|^2,      l = regularization * (1 + purchases)^power

The first sum needs only the Gram matrix Q^T Q. b, A and B are what users and items have in common;
s and t are service vectors, where there are any: A and B are ridge regressions, solved after each
sweep, so that a user or item with few purchases stays near what the graph says of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from medapps.recommend.parts.kernels import FAST

BLOCK = 2048
"""Rows that are solved at a time."""


@dataclass(frozen=True)
class Factoring:
    """Settings of one factorisation."""

    factors: int = 64
    unobserved: float = 0.1
    """a0: weight of a pair without a purchase."""
    regularization: float = 0.1
    power: float = 0.5
    """How the regularization grows with the number of purchases."""
    sweeps: int = 12
    steps: int = 3
    """Conjugate-gradient steps per row and sweep."""
    ridge: float = 1.0
    """Regularization of A and B, in rows."""


@dataclass(frozen=True)
class Factors:
    """Trained vectors; a score is users[u] . items[i]."""

    users: np.ndarray  # (users, factors) float32, b + A s_u included
    items: np.ndarray  # (items, factors) float32
    base: np.ndarray  # (factors,): b, the vector of a user of whom nothing is known
    map: np.ndarray | None  # (service dim, factors): A
    how: Factoring

    def scores(self, users: np.ndarray) -> np.ndarray:
        """float32 (len(users), items)."""
        return self.users[users] @ self.items.T


def factorise(
    train: csr_matrix,
    how: Factoring,
    user_service: np.ndarray | None = None,
    item_service: np.ndarray | None = None,
    seed: int = 0,
) -> Factors:
    """Alternate between users and items; service vectors are (rows, dim), standardised."""
    back = csr_matrix(train.T)
    rng = np.random.default_rng(seed)
    size = 1 / np.sqrt(how.factors)
    users = np.zeros((train.shape[0], how.factors), np.float32)
    items = (rng.standard_normal((train.shape[1], how.factors)) * size).astype(np.float32)
    items[np.diff(back.indptr) == 0] = 0
    user_side = Side(train, how, user_service, centred=True)
    item_side = Side(back, how, item_service, centred=False)
    for _ in range(how.sweeps):
        users = user_side.update(users, items)
        items = item_side.update(items, users)
    users = user_side.update(users, items)
    return Factors(users, items, user_side.base, user_side.map, how)


class Side:
    """Users or items: their purchases, regularization, and what they have in common."""

    def __init__(
        self, matrix: csr_matrix, how: Factoring, service: np.ndarray | None, centred: bool
    ) -> None:
        self.matrix, self.how, self.service, self.centred = matrix, how, service, centred
        self.weight = penalties(matrix, how)
        self.base = np.zeros(how.factors, np.float32)
        self.map: np.ndarray | None = None
        self.prior = np.zeros((1, how.factors), np.float32)

    def update(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Solve all rows against the vectors of the other side, then what they have in common."""
        rows = solve_rows(
            self.matrix, others, self.weight, self.prior, rows, self.how, self.how.steps
        )
        has = np.diff(self.matrix.indptr) > 0
        weight, some = self.weight[has, None], rows[has]
        if self.centred:
            self.base = (weight * some).sum(0) / max(weight.sum(), 1e-12)
        if self.service is not None:
            known = self.service[has]
            gram = known.T @ (weight * known)
            gram.flat[:: len(gram) + 1] += self.how.ridge * weight.mean()
            self.map = np.linalg.solve(gram, known.T @ (weight * (some - self.base)))
            self.prior = self.base + self.service @ self.map
        else:
            self.prior = self.base[None, :]
        return rows


def penalties(matrix: csr_matrix, how: Factoring) -> np.ndarray:
    """float32 (rows,): the regularization of each row."""
    count = np.diff(matrix.indptr)
    return (how.regularization * (1 + count) ** how.power).astype(np.float32)


def solve_rows(
    matrix: csr_matrix,
    others: np.ndarray,  # (columns, factors)
    weight: np.ndarray,  # (rows,)
    prior: np.ndarray,  # (rows or 1, factors)
    start: np.ndarray,  # (rows, factors)
    how: Factoring,
    steps: int,
) -> np.ndarray:
    """Some conjugate-gradient steps on (a0 G + (1 - a0) Q_u^T Q_u + l_u) z = sum q + l_u prior.

    The rows of a block go together: one matrix product for G, one pass over their purchases.
    """
    gram = how.unobserved * (others.T @ others)
    rest = np.float32(1 - how.unobserved)
    out = np.empty_like(start)
    for begin in range(0, len(start), BLOCK):
        part = slice(begin, min(begin + BLOCK, len(start)))
        x, level = start[part].copy(), weight[part, None]
        residual = level * (prior[part] if len(prior) > 1 else prior) - x @ gram - level * x
        pointer = matrix.indptr[begin : part.stop + 1]
        _add_sums(pointer, matrix.indices, others, x, rest, np.float32(1), residual)
        p = residual.copy()
        norm = np.einsum("ij,ij->i", residual, residual)
        for _ in range(steps):
            image = p @ gram
            image += level * p
            _add_sums(pointer, matrix.indices, others, p, -rest, np.float32(0), image)
            curve = np.einsum("ij,ij->i", p, image)
            step = (norm / np.maximum(curve, 1e-20))[:, None]
            x += step * p
            residual -= step * image
            before, norm = norm, np.einsum("ij,ij->i", residual, residual)
            p *= (norm / np.maximum(before, 1e-20))[:, None]
            p += residual
        out[part] = x
    return out


def fold_in(
    factors: Factors, purchases: csr_matrix, service: np.ndarray | None = None
) -> np.ndarray:
    """Vectors (rows, factors) of new users with these purchases; without any it is their prior."""
    prior = factors.base[None, :]
    if service is not None and factors.map is not None:
        prior = factors.base + service @ factors.map
    shape = purchases.shape[0], prior.shape[1]
    start = np.broadcast_to(prior, shape).astype(np.float32, order="C")
    level = penalties(purchases, factors.how)
    x = solve_rows(purchases, factors.items, level, prior, start, factors.how, 12)
    return np.where((np.diff(purchases.indptr) > 0)[:, None], x, start)


@njit(cache=True, fastmath=FAST, error_model="numpy", nogil=True)
def _add_sums(
    pointer: np.ndarray,
    columns: np.ndarray,
    others: np.ndarray,
    x: np.ndarray,
    weight: np.float32,
    constant: np.float32,
    out: np.ndarray,
) -> None:  # pragma: no cover
    """out[u] += sum over purchases of (constant - weight * q . x_u) q."""
    width = others.shape[1]
    for row in range(len(pointer) - 1):
        for at in range(pointer[row], pointer[row + 1]):
            item = columns[at]
            dot = np.float32(0)
            for k in range(width):
                dot += others[item, k] * x[row, k]
            gain = constant - weight * dot
            for k in range(width):
                out[row, k] += gain * others[item, k]
