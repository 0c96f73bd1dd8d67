"""Lists for many users at once: blocks of scores, standardised and added, and their best items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from medapps.recommend.evaluation.metrics import list_metrics
from medapps.recommend.parts.kernels import add_scaled, add_sparse, best, moments
from medapps.recommend.parts.low_rank import LowRank, add_product
from medapps.recommend.parts.neighbours import NearItems

Scores = Callable[[np.ndarray], np.ndarray]
"""Users (n,) to the scores of all items, float32 (n, items), an array that may be written to."""

PAIRS = 8_000_000
"""Scores of one part that are held at a time: below 32 MiB, so that memory is used again."""


def top_k(
    parts: Sequence[Scores],
    weights: np.ndarray,  # (parts,) for all users, or (len(users), parts)
    users: np.ndarray,
    seen: csr_matrix,  # (all users, items): what is left out of a user's list
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Items int32 (len(users), k) and scores, best first; -1 and -inf where items run out.

    Every part is standardised over the items of each user, so that weights compare.
    """
    ids = np.full((len(users), k), -1, np.int32)
    top = np.full((len(users), k), -np.inf, np.float32)
    for part, scores in blended(parts, weights, users, seen.shape[1]):
        mask_seen(scores, seen, users[part])
        best(scores, k, ids[part], top[part])
    return ids, top


def blended(
    parts: Sequence[Scores], weights: np.ndarray, users: np.ndarray, items: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of (rows of `users`, weighted sums of standardised scores float32 (rows, items))."""
    weights = np.broadcast_to(weights, (len(users), len(parts))).astype(np.float32)
    size = max(1, PAIRS // max(items, 1))
    for begin in range(0, len(users), size):
        part = slice(begin, min(begin + size, len(users)))
        used = np.flatnonzero(weights[part].any(0)).tolist()
        if len(used) == 1 and (weights[part, used[0]] > 0).all():
            yield part, np.ascontiguousarray(parts[used[0]](users[part]), np.float32)
        else:
            chosen = [parts[number] for number in used]
            yield part, _sum(chosen, weights[part][:, used].T, users[part], items)


def _sum(
    parts: Sequence[Scores],
    weights: np.ndarray,  # (parts, n)
    users: np.ndarray,  # (n,)
    items: int,
) -> np.ndarray:
    """Sum of weight * z-scores, float32 (n, items).

    Products of vectors and sparse scores are added without an array of their own: what they would
    have as mean goes into the constant that every row begins with.
    """
    begin = np.zeros(len(users), np.float32)
    products, sparse, dense = [], [], []
    for part, weight in zip(parts, weights, strict=True):
        if isinstance(part, LowRank):
            vectors = part.vectors(users)
            mean, deviation = part.moments(vectors)
            scale = _over(weight, deviation, mean)
            products.append((vectors * scale[:, None], part.items))
        elif isinstance(part, NearItems):
            rows = part.sparse(users)
            mean = np.asarray(rows.sum(1), np.float32).reshape(-1) / items
            square = np.asarray(rows.multiply(rows).sum(1), np.float32).reshape(-1) / items
            scale = _over(weight, np.sqrt(np.maximum(square - mean * mean, 0)), mean)
            sparse.append((rows, scale))
        else:
            dense.append((part, weight))
            continue
        begin -= mean * scale
    total = np.empty((len(users), items), np.float32)
    total[:] = begin[:, None]
    for vectors, others in products:
        add_product(vectors, others, total)
    for rows, scale in sparse:
        add_sparse(rows.indptr, rows.indices, rows.data, scale, total)
    for scores, weight in dense:
        add_standard(scores(users), weight, total)
    return total


def add_standard(scores: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """out += weight * z-scores of each row; a row that is constant adds nothing."""
    mean, deviation = np.empty((2, len(scores)), np.float32)
    moments(scores, mean, deviation)
    add_scaled(scores, mean, _over(weight, deviation, mean), out)


def _over(weight: np.ndarray, deviation: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """weight / deviation, or 0 where the deviation is rounding alone."""
    flat = deviation <= 1e-6 * np.abs(mean) + 1e-30
    return np.where(flat, 0, weight / np.where(flat, 1, deviation)).astype(np.float32)


def standardise(scores: np.ndarray) -> np.ndarray:
    """z-scores of each row as a new array."""
    out = np.zeros_like(scores)
    add_standard(scores, np.ones(len(scores), np.float32), out)
    return out


def mask_seen(scores: np.ndarray, seen: csr_matrix, users: np.ndarray) -> None:
    """Write -inf over what these users have."""
    own = seen[users]
    row = np.repeat(np.arange(len(users)), np.diff(own.indptr))
    scores[row, own.indices] = -np.inf


def evaluate(
    scores: Scores,
    truth: csr_matrix,
    seen: csr_matrix,
    cutoffs: tuple[int, ...] = (10,),
    users: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Metrics of one score function for all users with held-out items, or some of them."""
    if users is None:
        users = np.flatnonzero(np.diff(truth.indptr))
    ids, _ = top_k([scores], np.ones(1), users, seen, max(cutoffs))
    return list_metrics(ids, truth[users], cutoffs)
