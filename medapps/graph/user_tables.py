"""Tables by user, read and checked: interactions (who took what) and labels (one class each)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.config import Column, InteractionsConfig
from medapps.graph.graph import SPLITS, Graph
from medapps.graph.ids import IdMap
from medapps.graph.tables import Table


def read_interactions(
    source: str | Path | pl.DataFrame,
    graph: Graph | None = None,
    *,
    bad_ratings: str = "error",
    own_split: bool = True,
    columns: InteractionsConfig | None = None,
) -> pl.DataFrame:
    """`user`, `item` and, where the table has them, `rating`, `timestamp`, `split`.

    `source` is a file, a dataset folder or a table. `bad_ratings` says whether negative and
    non-finite ratings are an error or are dropped; without `own_split` the column is ignored.
    `columns` says what they are called there.
    """
    columns = columns or InteractionsConfig()
    table = interactions_table(source, columns, own_split)
    frame = checked(table, graph, bad_ratings == "drop", columns)
    return without_bad_ratings(frame, table.name, bad_ratings)


def interactions_table(
    source: str | Path | pl.DataFrame, columns: InteractionsConfig, own_split: bool
) -> Table:
    """The columns of the interactions under their usual names, not read yet."""
    table = Table.of(source, "interactions")
    usual, given = InteractionsConfig(), columns.model_dump(exclude={"dates"})
    needed = ("user", "item")
    there = {
        role: name
        for role, name in given.items()
        if role in needed or name != getattr(usual, role) or name in table.columns
    }
    names = table.named(there, "interactions")
    if own_split and "split" in table.columns:
        names["split"] = "split"
    frame = table.frame.select(**{role: pl.col(name) for role, name in names.items()})
    return replace(table, frame=frame)


def checked(
    table: Table, graph: Graph | None, any_rating: bool, columns: InteractionsConfig
) -> pl.DataFrame:
    """All rows of the interactions, checked but for their ratings.

    `any_rating` lets ratings pass that are empty or no numbers.
    """
    names = table.columns
    table.refuse_gaps(*(n for n in names if n != "rating" or not any_rating))
    frame = table.with_ids("user").with_ids("item").of_graph(graph, ["user", "item"])
    if table.is_text and "rating" in names:
        rating = pl.col("rating")
        attempts = [rating.cast(pl.Int64), rating.cast(pl.Float64, strict=not any_rating)]
        frame = _first_that_works(frame, attempts)
    if "timestamp" in names:
        if frame["timestamp"].dtype == pl.String:
            frame = _first_that_works(frame, _times(columns.dates))
        _check_timestamp(frame["timestamp"], table.name, columns)
    if "split" in names:
        _check_split(frame["split"], table.name)
    return frame


def _first_that_works(frame: pl.DataFrame, attempts: list[pl.Expr]) -> pl.DataFrame:
    """The frame with a column converted; as it is, where no attempt succeeds for all rows."""
    for attempt in attempts:
        try:
            return frame.with_columns(attempt)
        except pl.exceptions.PolarsError:
            continue
    return frame


_ORDER = {
    "iso": (r"^(\d{4})/(\d{1,2})/(\d{1,2})", "${1}-${2}-${3}"),
    "day-first": (r"^(\d{1,2})[./-](\d{1,2})[./-](\d{4})", "${3}-${2}-${1}"),
    "month-first": (r"^(\d{1,2})[./-](\d{1,2})[./-](\d{4})", "${3}-${1}-${2}"),
}
"""Dates as they are written, and as year, month and day."""
_CLOCKS = ("", " %H:%M", " %H:%M:%S%.f", " %H:%M:%S%.f%z")


def _times(dates: str) -> list[pl.Expr]:
    """Ways to read words as times: numbers, or dates in one order of day and month, never guessed
    from the values.
    """
    time = pl.col("timestamp")
    day = time.str.replace(*_ORDER[dates]).str.replace("T", " ").str.replace("Z$", "+00:00")
    parsed = [day.str.to_datetime(f"%Y-%m-%d{clock}", time_unit="us") for clock in _CLOCKS]
    return [time.cast(pl.Int64), time.cast(pl.Float64), *parsed]


def _check_timestamp(time: pl.Series, name: str, columns: InteractionsConfig) -> None:
    called = f"Column {columns.timestamp!r}"
    if time.dtype == pl.String:
        others = " or ".join(dates for dates in _ORDER if dates != columns.dates)
        raise MedappsError(
            f"{called} of {name} must hold a number or a date in every row, and "
            f"not all of its values, such as {time[0]!r}, are {columns.dates} dates.",
            fix=f"Say how dates are written (--set interactions.dates={others}), or convert them.",
        )
    if not (time.dtype.is_numeric() or time.dtype in (pl.Datetime, pl.Date)):
        raise MedappsError(
            f"{called} of {name} has type {time.dtype}; it must be a number or a date.",
            fix="Convert it, or leave the column out.",
        )
    if time.dtype.is_float() and not time.is_finite().all():
        row = (~time.is_finite()).arg_true()[0] + 1
        raise MedappsError(f"Column 'timestamp' of {name} is not finite in row {row:,}.")


def _check_split(split: pl.Series, name: str) -> None:
    unknown = sorted(set(split.cast(pl.String).unique()) - set(SPLITS))
    if unknown:
        raise MedappsError(
            f"Column 'split' of {name} holds {unknown[0]!r}; parts are train, valid and test.",
            fix="Rename the parts, or ignore them with --set split.own_split=false.",
        )


def without_bad_ratings(frame: pl.DataFrame, name: str, rule: str) -> pl.DataFrame:
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
        "--set split.bad_ratings=drop.",
    )


MIN_USERS = 3
"""Of a class: one to train, one to validate, one to test."""


def user_table(source: str | Path | pl.DataFrame, stem: str, user: Column) -> Table:
    """A table whose column of users is called `user`, not read yet."""
    table = Table.of(source, stem)
    name = table.named({"user": user}, stem)["user"]
    if name == "user":
        return table
    others = [column for column in table.columns if column not in (name, "user")]
    return replace(table, frame=table.frame.select(pl.col(name).alias("user"), *others))


def read_labels(
    source: str | Path | pl.DataFrame, graph: Graph | None = None, user: Column = "user"
) -> pl.DataFrame:
    """`user` and the label columns; with a graph, at least one user must be in it.

    `source` is a file, a dataset folder or a table, and `user` is what the column is called there.
    """
    table = user_table(source, "labels", user)
    if len(table.columns) < 2:
        raise MedappsError(
            f"{table.name} has no label column beside 'user'.", fix="Add a column with classes."
        )
    table.refuse_gaps("user")
    labels = table.with_ids("user").of_graph(graph, ["user"])
    labels = labels.select("user", pl.exclude("user"))
    again = labels.filter(pl.col("user").is_duplicated())
    if len(again):
        raise MedappsError(
            f"{again['user'].n_unique():,} users of {table.name} have more than one row, "
            f"such as {again['user'][0]!r}.",
            fix="Keep one row per user.",
        )
    return labels


def label_columns(schema: Mapping[str, pl.DataType]) -> list[str]:
    """Columns that can be a label: all but `user`, fractional numbers, lists and bytes."""
    return [name for name, kind in schema.items() if name != "user" and _is_class(kind)]


def _is_class(kind: pl.DataType) -> bool:
    """Whether values of this type are classes: they are few, and can be written as words."""
    return not (kind.is_float() or kind.is_nested() or kind in (pl.Binary, pl.Duration, pl.Object))


def rare_classes(labels: pl.DataFrame, column: str) -> pl.DataFrame:
    """(class, users) of a column, where a class has too few users to be split."""
    counts = labels.drop_nulls(column).group_by(pl.col(column).alias("class")).len("users")
    return counts.filter(pl.col("users") < MIN_USERS).sort("class")


@dataclass(frozen=True)
class Labels:
    """The class of every labelled user."""

    column: str
    users: IdMap
    classes: list[str]
    """Ascending; the position is the id of the class."""
    label: np.ndarray
    """int64 (users,): class ids in the order of `users`."""
    notes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: str | Path | pl.DataFrame, column: str | None = None, rare: str = "error"
    ) -> Labels:
        """The labels in a column (the first, when not given) of what `read_labels` reads.

        Users without a label are left out and counted. `rare` says whether a class of fewer than
        three users is an error or is dropped.
        """
        table = user_table(source, "labels", "user")
        column = _choose(table.frame.collect_schema(), column)
        words = pl.col(column).cast(pl.String)
        blank = words.str.strip_chars() == ""
        frame = read_labels(source).select("user", label=pl.when(~blank).then(words))
        notes = {"unlabelled": int(frame["label"].null_count())}
        frame = frame.drop_nulls("label")
        if frame.is_empty():
            raise MedappsError(f"Column {column} of the labels is empty for every user.")
        frame = _without_rare(frame, column, rare, notes).sort("user")
        classes = sorted(frame["label"].unique().to_list())
        if len(classes) < 2:
            raise MedappsError(
                f"Column {column} has one class only ({classes[0]!r}): there is nothing to learn.",
                fix="Choose another column with --label.",
            )
        label = np.searchsorted(np.array(classes), frame["label"].to_numpy())
        return cls(column, IdMap.of(frame["user"]), classes, label, notes)


def _choose(schema: Mapping[str, pl.DataType], column: str | None) -> str:
    known = label_columns(schema)
    others = {name: kind for name, kind in schema.items() if name != "user"}
    if not known:
        types = ", ".join(f"{name!r} has type {kind}" for name, kind in others.items())
        raise MedappsError(
            f"The labels have no label column beside user: {types or 'there is no other column'}.",
            fix="Give a column of words, whole numbers or dates.",
        )
    if column is None:
        return known[0]
    if column not in known:
        why = "is not there"
        if column in others:
            kind = others[column]
            what = "fractional numbers" if kind.is_float() else f"values of type {kind}"
            why = f"holds {what}, not classes"
        raise MedappsError(
            f"Label column {column!r} {why}.", fix=f"Choose one of: {', '.join(known)} (--label)."
        )
    return column


def _without_rare(
    frame: pl.DataFrame, column: str, rare: str, notes: dict[str, int]
) -> pl.DataFrame:
    few = rare_classes(frame, "label")
    if few.is_empty():
        return frame
    if rare == "drop":
        kept = frame.filter(~pl.col("label").is_in(few["class"].implode()))
        notes |= {"rare_classes": len(few), "rare_users": len(frame) - len(kept)}
        if kept.is_empty():
            raise MedappsError(f"No class of {column} has {MIN_USERS} users or more.")
        return kept
    raise MedappsError(
        f"Class {few['class'][0]!r} of {column} has {few['users'][0]} users and "
        f"{len(few)} of {frame['label'].n_unique()} classes have fewer than {MIN_USERS}: "
        "each class needs one user to train, one to validate and one to test.",
        fix="Merge these classes, or leave them out with --set label.rare=drop.",
    )
