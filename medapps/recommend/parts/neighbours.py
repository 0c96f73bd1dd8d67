"""Item-item parts: EASE in closed form and ItemKNN, both cut to few neighbours per item.

EASE:     S = I - P diag(1 / diag P),  P = (X^T X + regularization I)^-1
ItemKNN:  S_ij = n_ij / (n_i^power n_j^power + shrink)

S is sparse, (items, items); scores are X S. EASE needs a dense inverse over items or over users,
whichever are fewer; above `LIMIT` of both only the items bought most take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.linalg import lapack
from scipy.sparse import csc_matrix, csr_matrix, diags, hstack

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


def ease(
    train: csr_matrix, regularization: float, neighbours: int = NEIGHBOURS, limit: int = LIMIT
) -> Neighbours:
    """EASE by the smaller of its two inverses: (items, items), or (users, users) by Woodbury.

    Above `limit` of both, the items bought most take part; rarer ones have ItemKNN's neighbours.
    """
    buyers = np.flatnonzero(np.diff(train.indptr))
    if len(buyers) < train.shape[1] and len(buyers) <= limit:
        return Neighbours(_ease_by_users(train[buyers], regularization, neighbours))
    count = np.bincount(train.indices, minlength=train.shape[1])
    chosen = np.sort(np.argsort(-count, kind="stable")[:limit])
    matrix = cut_dense(ease_weights(train[:, chosen], regularization), neighbours)
    if len(chosen) < train.shape[1]:
        matrix = _joined(matrix, chosen, item_knn(train, 10.0, 0.5, neighbours).matrix)
    return Neighbours(matrix)


def ease_weights(train: csr_matrix, regularization: float) -> np.ndarray:
    """The dense weights, float32 (items, items)."""
    inverse = _inverse(train.T @ train, regularization)
    inverse /= -np.diag(inverse).copy()[None, :]
    np.fill_diagonal(inverse, 0)
    return inverse


def _ease_by_users(train: csr_matrix, regularization: float, neighbours: int) -> csr_matrix:
    """The same from P = (I - X^T (X X^T + regularization I)^-1 X) / regularization, in blocks."""
    middle = _inverse(train @ train.T, regularization)
    back, columns = csr_matrix(train.T), csc_matrix(train)
    pieces = []
    for begin in range(0, train.shape[1], COLUMNS):
        some = columns[:, begin : begin + COLUMNS]
        block = back @ np.ascontiguousarray((some.T @ middle).T)  # (items, block) of X^T M X
        own = np.arange(block.shape[1])
        block /= (1 - block[begin + own, own])[None, :]  # off the diagonal -P_ij / P_jj
        block[begin + own, own] = 0
        pieces.append(cut_dense(block, neighbours))
    return csr_matrix(hstack(pieces))


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


def item_knn(
    train: csr_matrix, shrink: float = 10.0, power: float = 0.5, neighbours: int = NEIGHBOURS
) -> Neighbours:
    """Cosine of items with shrinkage (power 1/2); a smaller power favours popular neighbours."""
    together = csr_matrix(train.T @ train)
    size = together.diagonal() ** np.float32(power)
    row = np.repeat(np.arange(len(size)), np.diff(together.indptr))
    value = together.data / (size[row] * size[together.indices] + np.float32(shrink))
    value[row == together.indices] = 0
    return Neighbours(
        cut_sparse(
            csr_matrix((value, together.indices, together.indptr), together.shape), neighbours
        )
    )


def cut_dense(weights: np.ndarray, neighbours: int) -> csr_matrix:
    """The largest absolute values of each column, the others dropped."""
    if neighbours >= len(weights):
        return csr_matrix(weights)
    size = len(weights)
    kept = np.empty((weights.shape[1], neighbours), np.int32)
    for begin in range(0, weights.shape[1], 1024):
        block = np.abs(weights[:, begin : begin + 1024]).T
        kept[begin : begin + 1024] = np.argpartition(-block, neighbours - 1, 1)[:, :neighbours]
    column = np.repeat(np.arange(weights.shape[1]), neighbours)
    row = kept.reshape(-1)
    out = csr_matrix((weights[row, column], (row, column)), shape=(size, weights.shape[1]))
    out.eliminate_zeros()
    return out


def cut_sparse(weights: csr_matrix, neighbours: int) -> csr_matrix:
    """The same of a sparse matrix with values of one sign."""
    by_column = csc_matrix(weights)
    column = np.repeat(np.arange(weights.shape[1]), np.diff(by_column.indptr))
    order = np.lexsort((-by_column.data, column))
    place = np.arange(len(column)) - np.repeat(by_column.indptr[:-1], np.diff(by_column.indptr))
    stays = order[(place < neighbours) & (by_column.data[order] != 0)]
    return csr_matrix(
        (by_column.data[stays], (by_column.indices[stays], column[stays])), shape=weights.shape
    )


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
