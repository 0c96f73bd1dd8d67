"""Lists of ids in files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from medapps.errors import MedappsError
from medapps.graph.tables import Table, regular_file

_COLUMNS = ("id", "user", "entity")


def read_ids(path: Path) -> pl.Series:
    """The ids in a file: one per line, or a column (id, user, entity or the first) of a table."""
    path = Path(path)
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
        lines = regular_file(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MedappsError(f"Cannot read the ids in {path}: {error}.") from error
    return pl.Series("id", [line.strip() for line in lines if line.strip()], dtype=pl.String)
