"""Item-item parts: EASE in closed form and ItemKNN, both with few neighbours per item.

EASE:     S = I - P diag(1 / diag P),  P = (X^T X + regularization I)^-1
ItemKNN:  S_ij = n_ij / (n_i^power n_j^power + shrink)

S is sparse, (items, items); scores are X S. EASE needs a dense inverse over items or over users,
whichever are fewer; above `LIMIT` of both only the items bought most take part. Of each column the
largest positive weights stay, and are fitted again as a ridge regression on these items alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.linalg import lapack
from scipy.sparse import csc_matrix, csr_matrix, diags

from medapps.recommend.parts.kernels import best

LIMIT = 12_500
"""Rows of the inverse of an EASE, which takes LIMIT^2 numbers of four bytes and half a minute."""
NEIGHBOURS = 50
COLUMNS = 512
"""Items whose neighbours are found at a time."""


@dataclass(frozen=True)
class Neighbours:
    """A sparse matrix from what a user has to what a user may like."""

    matrix: csr_matrix  # (items, items) float32

    def scores(self, purchases: csr_matrix) -> np.ndarray:
        """float32 (rows, items) for rows of purchases."""
        return (purchases @ self.matrix).toarray()

    def part(self, purchases: csr_matrix) -> NearItems:
        """The scores of users with these purchases."""
        return NearItems(self, purchases)


@dataclass(frozen=True)
class NearItems:
    """Scores of users, zero but for the neighbours of what they have."""

    near: Neighbours
    purchases: csr_matrix  # (users, items)

    def __call__(self, users: np.ndarray) -> np.ndarray:
        """float32 (len(users), items)."""
        return self.near.scores(self.purchases[users])

    def sparse(self, users: np.ndarray) -> csr_matrix:
        """The same, (len(users), items), without the zeros."""
        return csr_matrix(self.purchases[users] @ self.near.matrix, dtype=np.float32)


def ease(
    train: csr_matrix, regularization: float, neighbours: int = NEIGHBOURS, limit: int = LIMIT
) -> Neighbours:
    """EASE by the smaller of its two inverses: (items, items), or (users, users) by Woodbury.

    Above `limit` of both, the items bought most take part; rarer ones have ItemKNN's neighbours.
    """
    buyers = np.flatnonzero(np.diff(train.indptr))
    if len(buyers) < train.shape[1] and len(buyers) <= limit:
        kept = _support_by_users(train[buyers], regularization, neighbours)
        return Neighbours(_fitted_again(train, kept, regularization))
    count = np.bincount(train.indices, minlength=train.shape[1])
    chosen = np.sort(np.argsort(-count, kind="stable")[:limit])
    inner = train[:, chosen]
    weights = ease_weights(inner, regularization)
    kept = np.full((len(chosen), min(neighbours, len(chosen))), -1, np.int32)
    for begin in range(0, len(chosen), COLUMNS):
        part = slice(begin, begin + COLUMNS)
        kept[part] = _largest(np.ascontiguousarray(weights[:, part].T), kept.shape[1])
    del weights
    matrix = _fitted_again(inner, kept, regularization)
    if len(chosen) < train.shape[1]:
        matrix = _joined(matrix, chosen, item_knn(train, neighbours=neighbours).matrix)
    return Neighbours(matrix)


def ease_weights(train: csr_matrix, regularization: float) -> np.ndarray:
    """The dense weights, float32 (items, items)."""
    inverse = _inverse(train.T @ train, regularization)
    inverse /= -np.diag(inverse).copy()[None, :]
    np.fill_diagonal(inverse, 0)
    return inverse


def _support_by_users(train: csr_matrix, regularization: float, neighbours: int) -> np.ndarray:
    """Neighbours (items, count), -1 where there are fewer, without an (items, items) array.

    P = (I - X^T (X X^T + regularization I)^-1 X) / regularization, a block of items at a time.
    """
    middle = _inverse(train @ train.T, regularization)
    back, columns = csr_matrix(train.T), csc_matrix(train)
    kept = np.full((train.shape[1], min(neighbours, train.shape[1])), -1, np.int32)
    for begin in range(0, train.shape[1], COLUMNS):
        some = np.ascontiguousarray((columns[:, begin : begin + COLUMNS].T @ middle).T)
        block = np.ascontiguousarray((back @ some).T)  # (block, items) of X^T M X
        own = np.arange(len(block))
        block[own, begin + own] = 0  # the others are -P_ij, up to a positive factor per item
        kept[begin : begin + COLUMNS] = _largest(block, kept.shape[1])
    return kept


def _inverse(gram: csr_matrix, regularization: float) -> np.ndarray:
    """Inverse of gram + regularization I, float32, by a Cholesky factor in place."""
    dense = np.asfortranarray(gram.toarray(), np.float32)
    dense.flat[:: len(dense) + 1] += np.float32(regularization)
    factor, failed = lapack.spotrf(dense, lower=True, overwrite_a=True, clean=False)
    assert failed == 0, f"the Gram matrix is not positive, minor {failed}"
    inverse, failed = lapack.spotri(factor, lower=True, overwrite_c=True)
    assert failed == 0, failed
    _mirror(inverse)
    return inverse


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Columns (rows, count) of the largest positive values of each row, -1 if there are fewer."""
    ids = np.empty((len(values), count), np.int32)
    top = np.empty((len(values), count), np.float32)
    best(values, count, ids, top)
    ids[top <= 0] = -1
    return ids


def _fitted_again(train: csr_matrix, kept: np.ndarray, regularization: float) -> csr_matrix:
    """Ridge regression of every item on its kept neighbours (items, count) alone."""
    gram = csr_matrix(train.T @ train)
    gram.sort_indices()
    weights = np.zeros(kept.shape, np.float32)
    _regress(gram.indptr, gram.indices, gram.data, kept, regularization, weights)
    return _matrix(kept, weights)


def item_knn(
    train: csr_matrix, shrink: float = 10.0, power: float = 0.5, neighbours: int = NEIGHBOURS
) -> Neighbours:
    """Cosine of items with shrinkage (power 1/2); a smaller power favours popular neighbours."""
    back = csr_matrix(train.T)
    size = np.diff(back.indptr).astype(np.float32) ** np.float32(power)
    count = min(neighbours, len(size))
    kept = np.full((len(size), count), -1, np.int32)
    values = np.zeros((len(size), count), np.float32)
    for begin in range(0, len(size), COLUMNS):
        part = slice(begin, min(begin + COLUMNS, len(size)))
        block = csr_matrix(back[part] @ train)
        row = np.repeat(np.arange(begin, part.stop), np.diff(block.indptr))
        block.data /= size[row] * size[block.indices] + np.float32(shrink)
        block.data[row == block.indices] = 0
        _best_of_sparse(block.indptr, block.indices, block.data, kept[part], values[part])
    return Neighbours(_matrix(kept, values))


def _matrix(kept: np.ndarray, values: np.ndarray) -> csr_matrix:
    """(items, items) with values (items, count) of the neighbours kept for each column."""
    column, place = np.nonzero((kept >= 0) & (values != 0))
    entries = (values[column, place], (kept[column, place], column))
    return csr_matrix(entries, shape=(len(kept), len(kept)))


def _joined(inner: csr_matrix, chosen: np.ndarray, outer: csr_matrix) -> csr_matrix:
    """Columns of `chosen` from inner (on chosen rows), the others from outer at inner's scale."""
    size = outer.shape[0]
    rest = np.ones(size, np.float32)
    rest[chosen] = 0
    place = csr_matrix(
        (np.ones(len(chosen), np.float32), (chosen, np.arange(len(chosen)))), (size, len(chosen))
    )
    a = abs(inner).sum() / max(inner.shape[1], 1)
    b = outer.sum() / size
    scale = np.float32(a / b if b else 0.0)
    return csr_matrix(place @ inner @ place.T + (outer * scale) @ diags(rest))


@njit(cache=True)
def _mirror(lower: np.ndarray) -> None:
    """Copy the lower triangle of a square array into its upper one, tile by tile."""
    n = len(lower)
    for a in range(0, n, 64):
        for b in range(a, n, 64):
            for i in range(a, min(a + 64, n)):
                for j in range(max(b, i + 1), min(b + 64, n)):
                    lower[i, j] = lower[j, i]


@njit(cache=True)
def _best_of_sparse(
    pointer: np.ndarray, columns: np.ndarray, data: np.ndarray, kept: np.ndarray, top: np.ndarray
) -> None:
    """The largest positive values of each sparse row with their columns, in descending order."""
    count = kept.shape[1]
    for row in range(len(kept)):
        for at in range(pointer[row], pointer[row + 1]):
            x = data[at]
            if x > top[row, count - 1]:
                j = count - 1
                while j > 0 and top[row, j - 1] < x:
                    top[row, j] = top[row, j - 1]
                    kept[row, j] = kept[row, j - 1]
                    j -= 1
                top[row, j] = x
                kept[row, j] = columns[at]


@njit(cache=True)
def _regress(
    pointer: np.ndarray,
    columns: np.ndarray,
    data: np.ndarray,
    kept: np.ndarray,
    regularization: float,
    out: np.ndarray,
) -> None:
    """Solve (G_SS + regularization I) w = G_Sj for the neighbours S of every item j."""
    for item in range(len(kept)):
        some = kept[item][kept[item] >= 0]
        n = len(some)
        if n == 0:
            continue
        left, right = np.zeros((n, n)), np.zeros(n)
        for a in range(n):
            begin, end = pointer[some[a]], pointer[some[a] + 1]
            line = columns[begin:end]
            for b in range(a + 1):
                at = np.searchsorted(line, some[b])
                if at < len(line) and line[at] == some[b]:
                    left[a, b] = data[begin + at]
                    left[b, a] = left[a, b]
            left[a, a] += regularization
            at = np.searchsorted(line, item)
            if at < len(line) and line[at] == item:
                right[a] = data[begin + at]
        out[item][kept[item] >= 0] = np.linalg.solve(left, right).astype(np.float32)
