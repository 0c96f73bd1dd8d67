"""Interactions: who took what, read, checked, held out and given ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap
from medapps.graph.split import (
    PARTS,
    TEST,
    TRAIN,
    VALID,
    digest_arrays,
    k_core,
    leave_one_out,
    mix,
    name_hash,
)
from medapps.graph.tables import Table


def read_interactions(
    source: str | Path | pl.DataFrame,
    graph: Graph | None = None,
    *,
    bad_ratings: str = "error",
    own_split: bool = True,
) -> pl.DataFrame:
    """`user`, `item` and, where the table has them, `rating`, `timestamp`, `split`.

    `source` is a file, a dataset folder or a table. `bad_ratings` says whether negative and
    non-finite ratings are an error or are dropped; without `own_split` the column is ignored.
    """
    frame, name = _read(source, graph, bad_ratings == "drop", own_split)
    return _without_bad_ratings(frame, name, bad_ratings)


def _read(
    source: str | Path | pl.DataFrame, graph: Graph | None, any_rating: bool, own_split: bool
) -> tuple[pl.DataFrame, str]:
    """All rows, checked but for their ratings, and what messages call the table.

    `any_rating` lets ratings pass that are empty or no numbers.
    """
    table = Table.of(source, "interactions")
    table.require("user", "item")
    wanted = ("rating", "timestamp", "split") if own_split else ("rating", "timestamp")
    extra = [name for name in wanted if name in table.columns]
    table = table.select("user", "item", *extra)
    table.refuse_gaps("user", "item", *(n for n in extra if n != "rating" or not any_rating))
    frame = table.with_ids("user").with_ids("item").of_graph(graph, ["user", "item"])
    if table.is_text:
        frame = _typed(frame, any_rating)
    if "timestamp" in extra:
        _check_timestamp(frame["timestamp"], table.name)
    if "split" in extra:
        _check_split(frame["split"], table.name)
    return frame, table.name


def _typed(frame: pl.DataFrame, any_rating: bool) -> pl.DataFrame:
    """Numbers of a text file as numbers, dates as dates; what is neither stays a string, but a
    rating becomes null where any is allowed.
    """
    rating, time = pl.col("rating"), pl.col("timestamp")
    numbers = {
        "rating": [rating.cast(pl.Int64), rating.cast(pl.Float64, strict=not any_rating)],
        "timestamp": [time.cast(pl.Int64), time.cast(pl.Float64), time.str.to_datetime()],
    }
    for name, attempts in numbers.items():
        for attempt in attempts if name in frame.columns else []:
            try:
                frame = frame.with_columns(attempt)
                break
            except pl.exceptions.PolarsError:
                continue
    return frame


def _check_timestamp(time: pl.Series, name: str) -> None:
    if not (time.dtype.is_numeric() or time.dtype in (pl.Datetime, pl.Date)):
        raise MedappsError(
            f"Column 'timestamp' of {name} has type {time.dtype}; it must be a number or a date.",
            fix="Convert it, or leave the column out.",
        )
    if time.dtype.is_float() and not time.is_finite().all():
        row = (~time.is_finite()).arg_true()[0] + 1
        raise MedappsError(f"Column 'timestamp' of {name} is not finite in row {row:,}.")


def _check_split(split: pl.Series, name: str) -> None:
    unknown = sorted(set(split.cast(pl.String).unique()) - set(PARTS))
    if unknown:
        raise MedappsError(
            f"Column 'split' of {name} holds {unknown[0]!r}; parts are train, valid and test.",
            fix="Rename the parts, or ignore them with --set recommend.own_split=false.",
        )


def _without_bad_ratings(frame: pl.DataFrame, name: str, rule: str) -> pl.DataFrame:
    if "rating" not in frame.columns:
        return frame
    rating = frame["rating"]
    if not rating.dtype.is_numeric():
        raise MedappsError(
            f"Column 'rating' of {name} has type {rating.dtype}; ratings are numbers.",
            fix="Convert it, or leave the column out: every row counts as one.",
        )
    values = rating.cast(pl.Float64)
    bad = ~(values.is_finite() & (values >= 0)).fill_null(False)
    if not bad.any():
        return frame
    if bad.all() and rule == "drop":
        raise MedappsError(f"No rating of {name} is a finite number of zero or more.")
    if rule == "drop":
        return frame.filter(~bad)
    first = bad.arg_true()[0]
    raise MedappsError(
        f"{bad.sum():,} ratings of {name} are negative or not finite, the first in row "
        f"{first + 1:,}: {rating[first]}.",
        fix="Repair them, leave the column out (every row counts as one), or drop these rows with "
        "--set recommend.bad_ratings=drop.",
    )


@dataclass(frozen=True)
class PurchaseSplit:
    """Pairs (n, 2) int32 of user and item ids, by part."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    """In ascending order."""
    cold: np.ndarray
    """bool (users,): kept out of training on purpose."""
    digest: str


@dataclass(frozen=True)
class Interactions:
    """Distinct (user, item) rows by user and time; every rating counts as one."""

    users: IdMap
    items: IdMap
    user: np.ndarray
    """int32 (n,)."""
    item: np.ndarray
    """int32 (n,)."""
    part: np.ndarray
    """int8 (n,): TRAIN, VALID or TEST, by `leave_one_out`."""
    notes: dict[str, int] = field(default_factory=dict)
    """Rows that were changed or dropped."""

    @classmethod
    def of(
        cls,
        source: str | Path | pl.DataFrame,
        *,
        core: int = 0,
        bad_ratings: str = "error",
        own_split: bool = True,
    ) -> Interactions:
        """Hold out and give ids to what `read_interactions` reads.

        `core` > 1 removes users and items with fewer training rows, again and again, until none is
        left. Rows are held out before, as by a graph that takes them in.
        """
        every, name = _read(source, None, bad_ratings == "drop", own_split)
        good = _without_bad_ratings(every, name, bad_ratings)
        frame = leave_one_out(good)
        notes = {
            "bad_ratings": len(every) - len(good),
            "duplicate_rows": len(good) - len(frame),
            "no_timestamps": int("timestamp" not in frame.columns),
        }
        if core > 1:
            held = len(frame)
            frame = _k_core(frame, core)
            notes["rows_outside_core"] = held - len(frame)
        users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
        user, item = users.ids(frame["user"]), items.ids(frame["item"])
        return cls(users, items, user, item, _part_ids(frame), notes)

    def split(self, cold_share: float = 0.0) -> PurchaseSplit:
        """The pairs of each part.

        A `cold_share` of the tested users, chosen by name, keeps its test rows and gives up all
        others. Refuses data in which no user can be tested.
        """
        user_hash = name_hash(self.users)
        tested = np.zeros(len(self.users), bool)
        tested[self.user[self.part == TEST]] = True
        if not tested.any():
            raise MedappsError(
                f"No user can be tested: all {len(self.users)} users have a single interaction, "
                "or the split column has no test rows.",
                fix="Give at least some users two interactions.",
            )
        cold = tested & (mix(user_hash) < np.uint64(int(cold_share * (2**64 - 1))))
        pairs = np.stack([self.user, self.item], axis=1)
        kept = ~cold[self.user]
        train, valid = (pairs[(self.part == part) & kept] for part in (TRAIN, VALID))
        test = pairs[self.part == TEST]
        test = test[np.lexsort((test[:, 1], test[:, 0]))]
        digest = digest_arrays(user_hash, name_hash(self.items), train, valid, test)
        return PurchaseSplit(train, valid, test, cold, digest)


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
            fix="Lower it with --set recommend.core=...",
        )
    return frame
