"""The tables that stand beside a graph: labels and interactions, checked."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from medapps.errors import MedappsError
from medapps.graph.graph import Graph
from medapps.graph.split import PARTS
from medapps.graph.tables import as_ids, find_table, refuse_gaps, scan_table, table_errors


def read_labels(path: str | Path, graph: Graph | None = None) -> pl.DataFrame:
    """`user` and the label columns; with a graph, at least one user must be in it."""
    file = table_file(Path(path), "labels")
    frame = _with_columns(file, ("user",), "labels")
    if len(frame.collect_schema()) < 2:
        raise MedappsError(
            f"{file} has no label column beside 'user'.", fix="Add a column with classes."
        )
    refuse_gaps(frame, file, ["user"])
    table = _collect(as_ids(frame, file, ["user"]), file)
    table = _like(table, file, "user", graph)
    again = table.filter(pl.col("user").is_duplicated())
    if len(again):
        raise MedappsError(
            f"{again['user'].n_unique():,} users of {file} have more than one row, "
            f"such as {again['user'][0]!r}.",
            fix="Keep one row per user.",
        )
    _refuse_strangers(table, file, graph, ["user"])
    return table


def read_interactions(
    path: str | Path,
    graph: Graph | None = None,
    *,
    any_rating: bool = False,
    own_split: bool = True,
) -> pl.DataFrame:
    """`user`, `item` and, where the file has them, `rating`, `timestamp`, `split`.

    `any_rating` lets ratings pass that are empty or no numbers, for who drops them; without
    `own_split` the column `split` is not read.
    """
    file = table_file(Path(path), "interactions")
    frame = _with_columns(file, ("user", "item"), "interactions")
    wanted = ("rating", "timestamp", "split") if own_split else ("rating", "timestamp")
    extra = [name for name in wanted if name in frame.collect_schema()]
    frame = frame.select("user", "item", *extra)
    checked = [name for name in extra if name != "rating" or not any_rating]
    refuse_gaps(frame, file, ["user", "item", *checked])
    frame = as_ids(as_ids(frame, file, ["user"]), file, ["item"])
    table = _collect(frame, file)
    if file.suffix != ".parquet":
        table = _typed(table, any_rating)
    table = _like(table, file, "user", graph)
    for name in checked:
        _CHECKS[name](table, file)
    _refuse_strangers(table, file, graph, ["user", "item"])
    return table


def known_users(folder: Path) -> pl.Series | None:
    """Users named by labels or interactions beside a graph; None when neither is there."""
    columns = []
    for stem in ("labels", "interactions"):
        file = find_table(folder, [stem])
        if file is not None:
            frame = _with_columns(file, ("user",), stem)
            columns.append(_collect(as_ids(frame.select("user").unique(), file, ["user"]), file))
    if not columns or len({frame["user"].dtype for frame in columns}) > 1:
        return columns[0]["user"] if columns else None
    return pl.concat(columns)["user"].unique()


def table_file(path: Path, stem: str) -> Path:
    """The file itself, or the file of that name in a dataset folder."""
    if not path.is_dir():
        return path
    file = find_table(path, [stem])
    if file is None:
        raise MedappsError(
            f"{path} has no {stem}: neither {stem}.parquet nor .csv nor .tsv.",
            fix=f"Name the file with --{stem}.",
        )
    return file


def _with_columns(file: Path, needed: tuple[str, ...], what: str) -> pl.LazyFrame:
    frame = scan_table(file)
    names = frame.collect_schema().names()
    missing = [name for name in needed if name not in names]
    if missing:
        raise MedappsError(
            f"{file} has no column {' and '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, names))}.",
            fix=f"The {what} need the columns {', '.join(needed)}"
            + (", separated by commas (.csv) or tabs (.tsv)." if len(names) == 1 else "."),
        )
    return frame


def _collect(frame: pl.LazyFrame, file: Path) -> pl.DataFrame:
    with table_errors(file):
        return frame.collect(engine="streaming")


def _like(table: pl.DataFrame, file: Path, name: str, graph: Graph | None) -> pl.DataFrame:
    """Ids of a text file take the type of the graph's; those of a Parquet file must have it."""
    if graph is None or table[name].dtype == graph.entities.dtype:
        return table
    if file.suffix != ".parquet" and graph.entities.dtype == pl.String:
        return table.with_columns(pl.col(name).cast(pl.String))
    raise MedappsError(
        f"Integer ids are mixed with string ids: column {name!r} of {file} has {table[name].dtype} "
        f"and the graph has {graph.entities.dtype} ids.",
        fix="Convert the columns to one type.",
    )


def _refuse_strangers(
    table: pl.DataFrame, file: Path, graph: Graph | None, columns: list[str]
) -> None:
    """A table of which the graph knows no id in any of `columns` belongs to another graph."""
    if graph is None or any((graph.entities.ids(table[name]) >= 0).any() for name in columns):
        return
    example = graph.entities.names(graph.users[:1])[0]
    raise MedappsError(
        f"None of the {table['user'].n_unique():,} users of {file} is in the graph {graph.name}: "
        f"{table['user'][0]!r} is unknown, the graph has {example!r}.",
        fix="Give the table that belongs to the graph, with ids written the same way.",
    )


def _typed(table: pl.DataFrame, any_rating: bool) -> pl.DataFrame:
    """Numbers of a text file as numbers, dates as dates; what is neither stays a string, but a
    rating becomes null where any is allowed.
    """
    rating, time = pl.col("rating"), pl.col("timestamp")
    numbers = {
        "rating": [rating.cast(pl.Int64), rating.cast(pl.Float64, strict=not any_rating)],
        "timestamp": [time.cast(pl.Int64), time.cast(pl.Float64), time.str.to_datetime()],
    }
    for name, attempts in numbers.items():
        for attempt in attempts if name in table.columns else []:
            try:
                table = table.with_columns(attempt)
                break
            except pl.exceptions.PolarsError:
                continue
    return table


def _check_rating(table: pl.DataFrame, file: Path) -> None:
    rating = table["rating"]
    if not rating.dtype.is_numeric():
        raise MedappsError(
            f"Column 'rating' of {file} has type {rating.dtype}; ratings are numbers.",
            fix="Convert it, or leave the column out: every row counts as one.",
        )
    bad = (~rating.cast(pl.Float64).is_finite()).arg_true()
    if len(bad):
        raise MedappsError(
            f"{len(bad):,} ratings of {file} are not finite numbers, the first in row "
            f"{bad[0] + 1:,}: {rating[bad[0]]}.",
            fix="Remove these rows, drop them with --set recommend.bad_ratings=drop, or leave the "
            "column out: every row counts as one.",
        )


def _check_timestamp(table: pl.DataFrame, file: Path) -> None:
    time = table["timestamp"]
    if not (time.dtype.is_numeric() or time.dtype in (pl.Datetime, pl.Date)):
        raise MedappsError(
            f"Column 'timestamp' of {file} has type {time.dtype}; it must be a number or a date.",
            fix="Convert it, or leave the column out.",
        )
    if time.dtype.is_float() and not time.is_finite().all():
        row = (~time.is_finite()).arg_true()[0] + 1
        raise MedappsError(f"Column 'timestamp' of {file} is not finite in row {row:,}.")


def _check_split(table: pl.DataFrame, file: Path) -> None:
    unknown = table["split"].cast(pl.String).unique().sort().to_list()
    unknown = [value for value in unknown if value not in PARTS]
    if unknown:
        raise MedappsError(
            f"Column 'split' of {file} holds {unknown[0]!r}; parts are train, valid and test.",
            fix="Rename the parts, or ignore them with --set recommend.own_split=false.",
        )


_CHECKS = {"rating": _check_rating, "timestamp": _check_timestamp, "split": _check_split}
