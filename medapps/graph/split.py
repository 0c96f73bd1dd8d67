"""Who is trained on, validated on and tested on: one rule, shared by the graph and the tasks.

The order of rows in a file never matters: ties are decided by hashes of names. A graph that takes
purchases as triples and a task that tests on the others must agree, so both ask here.
"""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl

from medapps.graph.ids import IdMap

TRAIN, VALID, TEST = 0, 1, 2
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}


def mix(values: np.ndarray) -> np.ndarray:
    """Splitmix64: spreads uint64 numbers evenly and the same on every machine."""
    x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def name_hash(names: IdMap) -> np.ndarray:
    """One uint64 per name that depends on the name alone, (n,)."""
    if names.integers is not None:
        return mix(np.asarray(names.integers).astype(np.uint64))
    assert names.offsets is not None and names.text is not None
    offsets = np.asarray(names.offsets)
    length = np.diff(offsets)
    place = np.arange(len(names.text)) - np.repeat(offsets[:-1], length)
    longest = int(length.max(initial=0))
    power = np.cumprod(np.full(longest + 1, 0x100000001B3, dtype=np.uint64))
    terms = (np.asarray(names.text).astype(np.uint64) + np.uint64(1)) * power[place]
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])  # wraps on purpose
    return mix(total[offsets[1:]] - total[offsets[:-1]] + length.astype(np.uint64))


def digest_arrays(*arrays: np.ndarray) -> str:
    """SHA-256 over types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def leave_one_out(interactions: pl.DataFrame) -> pl.DataFrame:
    """Distinct (user, item) rows by user and time, with the column `split` filled in.

    The latest row of a user is for testing, the second latest for validation, the rest trains. A
    user with one row only trains; with two there is no validation row. Parts that the table names
    are kept; where none is for validation, it is the latest training row of each tested user that
    has two. Of rows that repeat a pair the latest stays, a test row before a training row.
    """
    frame, own, timed = interactions, "split" in interactions, "timestamp" in interactions
    part = pl.col("split").replace_strict(PARTS, return_dtype=pl.Int8)
    if own or timed:
        order = ([part] if own else []) + (["timestamp"] if timed else [])
        frame = frame.sort(order, maintain_order=True)
    frame = frame.unique(["user", "item"], keep="last", maintain_order=True)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    user, item = users.ids(frame["user"]), items.ids(frame["item"])
    pair = mix(name_hash(users)[user] ^ mix(name_hash(items)[item]))
    time = frame["timestamp"].to_physical().to_numpy() if timed else np.zeros(len(frame))
    rows = np.lexsort((pair, time, user))
    frame, user = frame[rows], user[rows]
    if own:
        parts = _with_validation(user, frame.select(part).to_series().to_numpy().copy())
    else:
        count = np.bincount(user)
        from_end = np.repeat(np.cumsum(count), count) - 1 - np.arange(len(user))  # 0 = latest
        parts = np.where((from_end == 0) & (count[user] >= 2), TEST, TRAIN)
        parts = np.where((from_end == 1) & (count[user] >= 3), VALID, parts)
    names = pl.Series("split", list(PARTS), dtype=pl.String)
    return frame.with_columns(names.gather(parts))


def _with_validation(user: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Moves each tested user's latest training row to validation, unless rows are named already."""
    if (part == VALID).any():
        return part
    training = np.flatnonzero(part == TRAIN)
    last = np.full(user.max(initial=-1) + 1, -1)
    last[user[training]] = training  # rows are in order of time, the last assignment wins
    tested = np.zeros(len(last), bool)
    tested[user[part == TEST]] = True
    enough = np.bincount(user[training], minlength=len(last)) >= 2
    part[last[tested & enough]] = VALID
    return part


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


def stratified(
    hashes: np.ndarray,
    labels: np.ndarray,
    seed: int = 0,
    shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
) -> np.ndarray:
    """Part of each user (TRAIN, VALID, TEST), (users,) int8; every class has all three parts.

    `hashes` (users,) are name hashes, `labels` (users,) class ids; a class needs three users.
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
