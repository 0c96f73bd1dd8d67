"""Which interactions train and which are held out: one rule, shared by the graph and the tasks.

The order of rows in a file never matters: ties are decided by hashes of names. A graph that takes
interactions as triples and a task that tests on the others must agree, so both ask here.
"""

from __future__ import annotations

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


def parts(
    user: np.ndarray,
    item: np.ndarray,
    time: np.ndarray | None,
    user_hash: np.ndarray,
    item_hash: np.ndarray,
    given: np.ndarray | None = None,
) -> np.ndarray:
    """TRAIN, VALID or TEST of each distinct (user, item) row, int8 (rows,), in the order given.

    The latest row of a user is for testing, the second latest for validation, the rest trains. A
    user with one row only trains; with two there is no validation row. `given` holds a data set's
    own parts: they are kept, and when no row is marked for validation it is the latest training
    row of each tested user that has two.
    """
    order = by_time(user, item, time, user_hash, item_hash)
    person = user[order]
    if given is None:
        count = np.bincount(user, minlength=len(user_hash))
        from_end = np.repeat(np.cumsum(count), count) - 1 - np.arange(len(user))  # 0 = latest
        size = count[person]
        part = np.where((from_end == 0) & (size >= 2), TEST, TRAIN)
        part = np.where((from_end == 1) & (size >= 3), VALID, part)
    else:
        part = _second_latest(person, given[order].copy(), len(user_hash))
    out = np.empty(len(user), np.int8)
    out[order] = part
    return out


def by_time(
    user: np.ndarray,
    item: np.ndarray,
    time: np.ndarray | None,
    user_hash: np.ndarray,
    item_hash: np.ndarray,
) -> np.ndarray:
    """Rows in order of user, then time, then a hash of the two names."""
    pair = mix(user_hash[user] ^ mix(item_hash[item]))
    return np.lexsort((pair, np.zeros(len(user)) if time is None else time, user))


def _second_latest(user: np.ndarray, part: np.ndarray, n_users: int) -> np.ndarray:
    """Moves each tested user's latest training row to validation, unless rows are named already."""
    if (part == VALID).any():
        return part
    training = np.flatnonzero(part == TRAIN)
    last = np.full(n_users, -1)
    last[user[training]] = training  # rows are in order of time, the last assignment wins
    tested = np.zeros(n_users, bool)
    tested[user[part == TEST]] = True
    enough = np.bincount(user[training], minlength=n_users) >= 2
    part[last[tested & enough]] = VALID
    return part


def leave_one_out(interactions: pl.DataFrame) -> pl.DataFrame:
    """Distinct (user, item) rows with the column `split` filled in by the rule of `parts`.

    Of rows that repeat a pair the latest stays, a test row before a training row.
    """
    own = "split" in interactions.columns
    frame = interactions
    if own:
        rank = pl.col("split").replace_strict(PARTS, return_dtype=pl.Int8)
        frame = frame.with_columns(_part=rank)
    order = (["_part"] if own else []) + (["timestamp"] if "timestamp" in frame.columns else [])
    if order:
        frame = frame.sort(order, maintain_order=True)
    frame = frame.unique(["user", "item"], keep="last", maintain_order=True)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    part = parts(
        users.ids(frame["user"]),
        items.ids(frame["item"]),
        frame["timestamp"].to_physical().to_numpy() if "timestamp" in frame.columns else None,
        name_hash(users),
        name_hash(items),
        frame["_part"].to_numpy() if own else None,
    )
    names = pl.Series("split", part).replace_strict(
        list(PARTS.values()), list(PARTS), return_dtype=pl.String
    )
    return frame.drop("_part", strict=False).with_columns(names)
