"""Who is trained on, validated on and tested on: one rule, shared by the graph and the tasks.

The order of rows in a file never matters: ties are decided by hashes of names. A graph that takes
purchases as triples and a task that tests on the others must agree, so both ask here: vectors,
labels and recommendations never see a purchase that validates or tests. Of cold users none trains.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from medapps.arrays import open_arrays
from medapps.errors import MedappsError
from medapps.graph.config import InteractionsConfig, SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.user_tables import checked, interactions_table, without_bad_ratings
from medapps.store import NEW, Manifest, Provenance, read_manifest, usable, writing

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


def by_date(interactions: pl.DataFrame, share: float) -> pl.DataFrame:
    """The latest `share` of all rows is for testing, the same share before it for validation."""
    if "timestamp" not in interactions.columns:
        raise MedappsError(
            "A split by time needs a column 'timestamp'.", fix="Use --set split.by=last."
        )
    late = pl.col("timestamp").rank("min") / pl.len()
    part = (
        pl.when(late > 1 - share)
        .then(pl.lit("test"))
        .when(late > 1 - 2 * share)
        .then(pl.lit("valid"))
        .otherwise(pl.lit("train"))
    )
    return interactions.with_columns(split=part)


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


COLD_VALID, COLD_TEST, WITHHELD = 3, 4, 5
"""Parts of cold users: some of them validate with all they have; of the others the test rows test
and the rest is not used at all.
"""
VALID_SHARE, VALID_LEAST, COLD_VALIDATES = 0.03, 2000, 0.2
"""Validation takes at most this part of the rows, but at least so many users where there are as
many; what it does not take trains. This part of the cold users validates.
"""


@dataclass(frozen=True)
class PurchaseSplit:
    """Distinct (user, item) pairs and what each is for."""

    users: IdMap
    items: IdMap
    pairs: np.ndarray
    """int32 (n, 2): user and item, by user and time."""
    part: np.ndarray
    """int8 (n,): TRAIN, VALID, TEST, COLD_VALID, COLD_TEST or WITHHELD."""
    notes: dict[str, int] = field(default_factory=dict)
    """Rows that were changed or dropped."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)

    @cached_property
    def digest(self) -> str:
        """Changes when any user, item or part does."""
        names = name_hash(self.users), name_hash(self.items)
        return digest_arrays(*names, self.pairs, self.part)

    def rows(self, *parts: int) -> np.ndarray:
        """The pairs of some parts, int32 (k, 2)."""
        return self.pairs[np.isin(self.part, parts)]

    def table(self, *parts: int) -> pl.DataFrame:
        """The pairs of some parts by name: user, item."""
        rows = self.rows(*parts)
        return pl.DataFrame(
            {"user": self.users.names(rows[:, 0]), "item": self.items.names(rows[:, 1])}
        )

    def save(self, folder: Path, provenance: Provenance = NEW) -> PurchaseSplit:
        """Write the split as a folder."""
        with writing(folder, kind="split", provenance=provenance) as draft:
            draft.arrays("split.safetensors", {"pairs": self.pairs, "part": self.part})
            self.users.save(draft.path("users.safetensors"))
            self.items.save(draft.path("items.safetensors"))
            draft.about = {"notes": self.notes, "content": self.digest}
        return self

    @classmethod
    @usable("split")
    def load(cls, folder: Path) -> PurchaseSplit:
        """Read a split back."""
        folder = Path(folder)
        manifest = read_manifest(folder, kind="split")
        arrays = open_arrays(folder / "split.safetensors")
        users, items = (IdMap.load(folder / f"{kind}.safetensors") for kind in ("users", "items"))
        notes = dict(manifest.about["notes"])
        pairs, part = np.asarray(arrays["pairs"]), np.asarray(arrays["part"])
        return cls(users, items, pairs, part, notes, manifest)


def split_purchases(
    source: str | Path | pl.DataFrame,
    config: SplitConfig | None = None,
    columns: InteractionsConfig | None = None,
) -> PurchaseSplit:
    """Decide what each purchase of a file, a dataset folder or a table is for.

    Refuses data in which no user can be tested. `columns` says what they are called there.
    """
    split = decided(source, config or SplitConfig(), columns)
    if not np.isin(split.part, (TEST, COLD_TEST)).any():
        raise MedappsError(
            f"No user can be tested: all {len(split.users)} users have a single interaction, "
            "or the split column has no test rows.",
            fix="Give at least some users two interactions.",
        )
    return split


def decided(
    source: str | Path | pl.DataFrame,
    config: SplitConfig,
    columns: InteractionsConfig | None = None,
) -> PurchaseSplit:
    """The same for purchases among which there may be nobody to test."""
    columns = columns or InteractionsConfig()
    table = interactions_table(source, columns, config.own_split)
    every = checked(table, None, config.bad_ratings == "drop", columns)
    good = without_bad_ratings(every, table.name, config.bad_ratings)
    own = "split" in good.columns
    frame = by_date(good, config.test_share) if config.by == "time" and not own else good
    frame = leave_one_out(frame)
    notes = {
        "bad_ratings": len(every) - len(good),
        "duplicate_rows": len(good) - len(frame),
        "no_timestamps": int("timestamp" not in frame.columns),
    }
    if config.core > 1:  # rows are held out before, so that the core does not move them
        held = len(frame)
        frame = _k_core(frame, config.core)
        notes["rows_outside_core"] = held - len(frame)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    pairs = np.stack([users.ids(frame["user"]), items.ids(frame["item"])], axis=1)
    part = _parts(pairs[:, 0], _part_ids(frame), mix(name_hash(users)), config.cold_share)
    return PurchaseSplit(users, items, pairs, part, notes)


def _parts(user: np.ndarray, part: np.ndarray, lot: np.ndarray, cold_share: float) -> np.ndarray:
    """The parts with cold users withheld, a few of them for validation, and no more validation
    rows than are needed; `lot` (users,) uint64 is each user's draw.
    """
    out = part.copy()
    tested = np.zeros(len(lot), bool)
    tested[user[part == TEST]] = True
    top = 2**64 - 1
    cold = tested & (lot < np.uint64(int(cold_share * top)))
    validates = cold & (lot < np.uint64(int(cold_share * COLD_VALIDATES * top)))
    able = np.unique(user[(part == VALID) & ~cold[user]])
    limit = max(VALID_LEAST, int(VALID_SHARE * (~cold[user]).sum()))
    chosen = np.zeros(len(lot), bool)
    chosen[able[np.argsort(mix(lot[able]), kind="stable")[:limit]]] = True
    out[(part == VALID) & ~chosen[user]] = TRAIN
    out[cold[user]] = np.where(part[cold[user]] == TEST, COLD_TEST, WITHHELD)
    out[validates[user]] = COLD_VALID
    return out


def _part_ids(frame: pl.DataFrame) -> np.ndarray:
    return frame["split"].replace_strict(PARTS, return_dtype=pl.Int8).to_numpy()


def _k_core(frame: pl.DataFrame, core: int) -> pl.DataFrame:
    user, item = (
        frame[name].rank("dense").to_numpy().astype(np.int64) for name in ("user", "item")
    )
    frame = frame.filter(pl.Series(k_core(user, item, core, _part_ids(frame) == TEST)))
    if frame.is_empty():
        raise MedappsError(
            f"No user and item has {core} interactions among the others: the {core}-core is empty.",
            fix="Lower it with --set split.core=...",
        )
    return frame
