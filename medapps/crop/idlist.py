"""Ids that users give in files or on the command line, in the type of the ids of the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.graph.tables import Table, regular_file

_COLUMNS = ("id", "user", "entity")
_EXAMPLES = 5


def typed(names: pl.Series, kind: type[pl.DataType]) -> pl.Series:
    """The names as `kind`, String or Int64; null where a text is no integer."""
    if kind == pl.String:
        return names.cast(pl.String)
    if names.dtype == pl.String:
        return names.str.strip_chars().cast(pl.Int64, strict=False)
    return names


def read_ids(path: Path, kind: type[pl.DataType]) -> pl.Series:
    """The ids in a file, in the type of an IdMap's names (`kind`).

    One per line, or a column (id, user, entity or the first) of a table.
    """
    names = _read(Path(path))
    if not len(names):
        raise MedappsError(f"{path} holds no ids.", fix="Give a file with an id per line.")
    ids = typed(names, kind)
    wrong = names.filter(ids.is_null())
    if len(wrong):
        raise MedappsError(
            f"{len(wrong):,} ids in {path} are not integers, as those of the graph are: "
            f"{some_of(wrong)}.",
            fix="Correct the file.",
        )
    return ids


def _read(path: Path) -> pl.Series:
    if path.suffix in (".parquet", ".csv", ".tsv"):
        table = Table.of(path, "ids")
        names = table.columns
        if not names:
            raise MedappsError(f"{path} has no columns.", fix="Give a table with a column of ids.")
        wanted = next((name for name in _COLUMNS if name in names), names[0])
        table = table.select(wanted)
        if not table.is_text:
            table = table.with_ids(wanted)
        return table.collect().to_series().drop_nulls()
    try:
        lines = regular_file(path).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MedappsError(f"Cannot read the ids in {path}: {error}.") from error
    return pl.Series("id", [line.strip() for line in lines if line.strip()], dtype=pl.String)


def count_unknown(users: pl.Series, known: np.ndarray, ids: Path) -> int:
    """How many of the users are not known; refuses a file of which nobody is."""
    if not known.any():
        raise MedappsError(
            f"None of the {len(users):,} users in {ids} is known: {some_of(users)}.",
            fix="Write the ids as the graph does.",
        )
    return int((~known).sum())


def rows_of(ids: IdMap, names: pl.Series, examples: np.ndarray) -> np.ndarray:
    """int32 rows of names that must all be known; `examples` are rows to name where one is not."""
    found = ids.ids(typed(names, ids.dtype))
    if (found < 0).any():
        lost = names.filter(pl.Series(found < 0))
        known = f" It knows e.g. {some_of(ids.names(examples))}." if len(examples) else ""
        verb = "is" if len(lost) == 1 else "are"
        raise MedappsError(f"{some_of(lost)} {verb} not in this crop.{known}")
    return found


def some_of(names: pl.Series) -> str:
    """The first few names, for a message."""
    some = ", ".join(repr(name) for name in names.head(_EXAMPLES).to_list())
    return some + (", ..." if len(names) > _EXAMPLES else "")
