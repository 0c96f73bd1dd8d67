"""Who is trained on, validated on and tested on: decided by hashes of names, never by row order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from medapps.graph.split import TEST, TRAIN, VALID, by_time, mix, name_hash, parts

__all__ = ["TEST", "TRAIN", "VALID", "LeaveOneOut", "k_core", "leave_one_out", "mix", "name_hash"]


def digest_arrays(*arrays: np.ndarray) -> str:
    """SHA-256 over types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def stratified(
    hashes: np.ndarray,
    labels: np.ndarray,
    seed: int = 0,
    shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
) -> np.ndarray:
    """Part of each user (TRAIN, VALID, TEST), (users,) int8; every class has all three parts.

    `hashes` (users,) are name hashes, `labels` (users,) class numbers; a class needs three users.
    """
    key = mix(hashes ^ mix(np.full(1, seed, np.uint64)))
    order = np.lexsort((key, labels))
    counts = np.bincount(labels, minlength=labels.max(initial=0) + 1)
    start = np.cumsum(counts) - counts
    place = np.arange(len(labels)) - np.repeat(start, counts)  # position inside the class
    size = np.repeat(counts, counts)
    n_test = np.clip(np.rint(size * shares[2]), 1, np.maximum(size - 2, 1))
    n_valid = np.clip(np.rint(size * shares[1]), 1, np.maximum(size - n_test - 1, 1))
    part = np.empty(len(labels), np.int8)
    part[order] = np.where(place < n_test, TEST, np.where(place < n_test + n_valid, VALID, TRAIN))
    return part


@dataclass(frozen=True)
class LeaveOneOut:
    """At most one test and one validation item per user; everything else trains."""

    train: np.ndarray  # (n, 2) int32: user, item
    valid: np.ndarray  # (v, 2) int32, ascending users
    test: np.ndarray  # (t, 2) int32, ascending users
    cold: np.ndarray  # (n_users,) bool: kept out of training on purpose
    digest: str


def k_core(
    users: np.ndarray, items: np.ndarray, k: int, fixed: np.ndarray | None = None
) -> np.ndarray:
    """Rows that remain when users and items with fewer than k rows are removed until none is left.

    Rows marked in `fixed` (test rows) do not count towards k, and stay while user and item stay.
    """
    keep = np.ones(len(users), bool)
    counted = keep if fixed is None else ~fixed
    while True:
        live = keep & counted
        user_count = np.bincount(users[live], minlength=users.max(initial=0) + 1)
        item_count = np.bincount(items[live], minlength=items.max(initial=0) + 1)
        stays = keep & (user_count[users] >= k) & (item_count[items] >= k)
        if stays.sum() == keep.sum():
            return keep
        keep = stays


def leave_one_out(
    user: np.ndarray,
    item: np.ndarray,
    time: np.ndarray | None,
    user_hash: np.ndarray,
    item_hash: np.ndarray,
    given: np.ndarray | None = None,
    cold_share: float = 0.0,
) -> LeaveOneOut:
    """Latest interaction to test, second latest to validation, the rest to training.

    Ties of time, or all rows when there is no time, are ordered by a hash of the two names. `given`
    (rows,) int8 holds a data set's own parts: its test rows are used as they are, and validation
    is the latest of its training rows unless it names validation rows too. Users with one row only
    train, users with two have no validation row. A `cold_share` of the users, chosen by name,
    keeps its test row and gives up all others.
    """
    order = by_time(user, item, time, user_hash, item_hash)
    part = parts(user, item, time, user_hash, item_hash, given)[order]
    user, item = user[order], item[order]
    has_test = np.zeros(len(user_hash), bool)
    has_test[user[part == TEST]] = True
    threshold = np.uint64(int(cold_share * (2**64 - 1)))
    cold = has_test & (mix(user_hash) < threshold)
    keep = (part == TEST) | ~cold[user]
    user, item, part = user[keep], item[keep], part[keep]
    rows = np.stack([user, item], axis=1).astype(np.int32)
    train, valid, test = (np.ascontiguousarray(rows[part == p]) for p in (TRAIN, VALID, TEST))
    test = test[np.lexsort((test[:, 1], test[:, 0]))]
    digest = digest_arrays(user_hash, item_hash, train, valid, test)
    return LeaveOneOut(train, valid, test, cold, digest)
