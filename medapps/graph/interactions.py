"""Interactions: a table of who took what, read and checked."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.graph.split import PARTS
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
    frame, name = checked(source, graph, bad_ratings == "drop", own_split)
    return without_bad_ratings(frame, name, bad_ratings)


def checked(
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
