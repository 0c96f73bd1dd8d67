"""Interactions: a table of who took what, checked and numbered."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.hold_out import TEST, k_core, name_hash
from medapps.graph.ids import IdMap
from medapps.graph.split import PARTS
from medapps.graph.split import leave_one_out as hold_out


@dataclass(frozen=True)
class Interactions:
    """Distinct (user, item) rows; every rating counts as one, as in implicit feedback."""

    users: IdMap
    items: IdMap
    user: np.ndarray  # (n,) int32
    item: np.ndarray  # (n,) int32
    time: np.ndarray | None  # (n,) float64 or int64
    part: np.ndarray | None  # (n,) int8, a data set's own split
    notes: dict[str, int] = field(default_factory=dict)  # rows that were changed or dropped

    @property
    def user_hash(self) -> np.ndarray:
        """One stable number per user name."""
        return name_hash(self.users)

    @property
    def item_hash(self) -> np.ndarray:
        """One stable number per item name."""
        return name_hash(self.items)


def read_interactions(
    frame: pl.DataFrame, *, core: int = 0, bad_ratings: str = "error", own_split: bool = True
) -> Interactions:
    """Check the table `user, item[, rating][, timestamp][, split]` and number its names.

    Of rows that repeat a pair the latest is kept (a test row before a training row). `core` > 1
    removes users and items with fewer training rows, again and again, until none is left.
    """
    if not own_split:
        frame = frame.drop("split", strict=False)
    frame = _checked(frame)
    notes: dict[str, int] = {}
    if "rating" in frame.columns:
        frame = _without_bad_ratings(frame, bad_ratings, notes)
    before = len(frame)
    if core > 1:  # rows are held out before any is removed, as by a graph that takes them in
        frame = hold_out(_known_parts(frame))
    has_split = "split" in frame.columns
    order = (["part"] if has_split else []) + (
        ["timestamp"] if "timestamp" in frame.columns else []
    )
    if has_split:
        names = _known_parts(frame)["split"]
        frame = frame.with_columns(part=names.replace_strict(PARTS, return_dtype=pl.Int8))
    frame = frame.select(["user", "item", *order])
    if order:  # the last of equal pairs in this order is the one that stays
        frame = frame.sort(order, maintain_order=True)
    frame = frame.unique(["user", "item"], keep="last", maintain_order=True)
    notes["duplicate_rows"] = before - len(frame)
    if core > 1:
        frame = _k_core(frame, core, notes)
    users, items = IdMap.of(frame["user"]), IdMap.of(frame["item"])
    return Interactions(
        users,
        items,
        users.ids(frame["user"]),
        items.ids(frame["item"]),
        frame["timestamp"].to_numpy() if "timestamp" in frame.columns else None,
        frame["part"].to_numpy() if has_split else None,
        notes,
    )


def _checked(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in ("user", "item") if name not in frame.columns]
    if missing:
        raise MedappsError(
            f"The interactions have no column {' and '.join(missing)}; "
            f"they have {', '.join(frame.columns)}.",
            fix="Rename the columns to user, item[, rating][, timestamp][, split].",
        )
    if frame.is_empty():
        raise MedappsError("The interactions are empty: there is nothing to recommend.")
    for name in ("user", "item", "timestamp", "split"):
        if name not in frame.columns:
            continue
        bad = frame[name].is_null()
        if frame[name].dtype.is_float():
            bad = bad | ~frame[name].is_finite().fill_null(False)
        if bad.any():
            raise MedappsError(
                f"Column {name} of the interactions has {bad.sum()} empty or non-finite values, "
                f"the first in row {bad.arg_true()[0]}.",
                fix="Remove or repair these rows.",
            )
    for name in ("user", "item"):
        kind = frame[name].dtype
        if not (kind.is_integer() or kind == pl.String):
            raise MedappsError(
                f"Column {name} of the interactions has type {kind}; ids are strings or integers."
            )
    if "timestamp" in frame.columns and frame["timestamp"].dtype.is_temporal():
        frame = frame.with_columns(pl.col("timestamp").dt.epoch("us"))
    elif "timestamp" in frame.columns and not frame["timestamp"].dtype.is_numeric():
        raise MedappsError(
            f"Column timestamp of the interactions has type {frame['timestamp'].dtype}; "
            "it must be a number or a date.",
            fix="Convert it, or leave the column out.",
        )
    return frame


def _without_bad_ratings(frame: pl.DataFrame, rule: str, notes: dict[str, int]) -> pl.DataFrame:
    """Ratings must be finite and not negative; `rule` says whether others stop or are dropped."""
    rating = frame["rating"]
    if not rating.dtype.is_numeric():
        raise MedappsError(
            f"Column rating of the interactions has type {rating.dtype}; it must be a number.",
            fix="Convert it, or leave the column out: every row counts as one.",
        )
    values = rating.cast(pl.Float64)
    good = (values.is_finite() & (values >= 0)).fill_null(False)
    if good.all():
        return frame
    if rule == "drop":
        notes["bad_ratings"] = int((~good).sum())
        frame = frame.filter(good)
        if frame.is_empty():
            raise MedappsError("No interaction has a finite rating of zero or more.")
        return frame
    raise MedappsError(
        f"{(~good).sum()} ratings are negative, empty or not finite, "
        f"the first in row {(~good).arg_true()[0]}.",
        fix="Repair them, or drop these rows with --set recommend.bad_ratings=drop.",
    )


def _known_parts(frame: pl.DataFrame) -> pl.DataFrame:
    """The table, unless its column split holds other words than train, valid and test."""
    found = frame["split"].unique().to_list() if "split" in frame.columns else []
    unknown = sorted(set(found) - set(PARTS))
    if not unknown:
        return frame
    raise MedappsError(
        f"Column split of the interactions holds {unknown[0]!r}; "
        "known parts are train, valid and test.",
        fix="Rename the parts, or ignore them with --set recommend.own_split=false.",
    )


def _k_core(frame: pl.DataFrame, core: int, notes: dict[str, int]) -> pl.DataFrame:
    user = frame["user"].rank("dense").to_numpy().astype(np.int64)
    item = frame["item"].rank("dense").to_numpy().astype(np.int64)
    fixed = frame["part"].to_numpy() == TEST if "part" in frame.columns else None
    keep = k_core(user, item, core, fixed)
    notes["rows_outside_core"] = int((~keep).sum())
    frame = frame.filter(pl.Series(keep))
    if frame.is_empty():
        raise MedappsError(
            f"No user and item has {core} interactions among the others: the {core}-core is empty.",
            fix="Lower it with --set recommend.core=...",
        )
    return frame


def require_evaluable(tests: int, interactions: Interactions) -> None:
    """Refuse data in which no user can be tested."""
    if tests:
        return
    raise MedappsError(
        f"No user can be tested: all {len(interactions.users)} users have a single interaction, "
        "or the split column has no test rows.",
        fix="Give at least some users two interactions.",
    )
