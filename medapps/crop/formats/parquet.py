"""Crops as Parquet tables: id, vector (fixed-size list), user and, for int8, scale.

One file for other tools: polars, DuckDB, pyarrow and Spark read it. Spark knows no half floats, so
float16 numbers are stored as float32, which changes none of them. The table passes through polars'
streaming engine, a few blocks at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from medapps.crop.formats.stream import CropStream
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap

_ROW_GROUP = 100_000
_TYPES: dict[str, pl.DataType] = {
    "float32": pl.Float32(),
    "float16": pl.Float32(),
    "int8": pl.Int8(),
}


def frame(names: pl.Series, vectors: np.ndarray) -> pl.DataFrame:
    """A table of id and vector."""
    wide = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
    kind = pl.Array(_TYPES[wide.dtype.name], wide.shape[1])
    column = pl.Series("vector", np.ascontiguousarray(wide), dtype=kind)
    return pl.DataFrame([names.alias("id"), column])


def write_entities(path: Path, crop: CropStream) -> None:
    """Stream the entity table to one file."""
    schema: dict[str, Any] = {"id": crop.entity_ids.dtype}
    schema["vector"] = pl.Array(_TYPES[crop.dtype], crop.shape[1])
    schema["user"] = pl.Boolean
    if crop.dtype == "int8":
        schema["scale"] = pl.Float32
    is_user = np.ones(crop.shape[0], bool)
    if crop.users is not None:
        is_user[:] = False
        is_user[crop.users] = True

    def batches(
        columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        assert predicate is None and limit is None, "the sink asks for everything"
        for part, vectors, scale in crop.blocks():
            names = crop.entity_ids.names(np.arange(part.start, part.stop))
            table = frame(names, vectors).with_columns(pl.Series("user", is_user[part]))
            if scale is not None:
                table = table.with_columns(pl.Series("scale", scale))
            yield table.select(columns or list(schema))

    lazy = register_io_source(batches, schema=schema)
    lazy.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


def read_entities(
    path: Path, dtype: str
) -> tuple[IdMap, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Ids, vectors, scale and users (None when all are) of a written entity table."""
    table = _read(path)
    scale = table["scale"].to_numpy() if "scale" in table.columns else None
    users = None
    if not table["user"].all():
        users = np.flatnonzero(table["user"].to_numpy()).astype(np.int32)
    vectors = _vectors(table)
    if dtype == "float16" and vectors.dtype == np.float32:
        vectors = vectors.astype(np.float16)
    return IdMap.of_sorted(table["id"]), vectors, scale, users


def read_relations(path: Path) -> tuple[IdMap, np.ndarray]:
    """Ids and vectors of a written relation table."""
    table = _read(path)
    return IdMap.of_sorted(table["id"]), _vectors(table)


def _vectors(table: pl.DataFrame) -> np.ndarray:
    column = table["vector"]
    if not len(column):
        kind = column.dtype
        assert isinstance(kind, pl.Array)
        return np.empty((0, kind.shape[0]), np.float32)
    return column.to_numpy()


def _read(path: Path) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise MedappsError(
            f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}.",
            fix="Make it again with the command that wrote it and --force.",
        ) from error
    if not table["id"].is_sorted() or table["id"].n_unique() != len(table):
        raise MedappsError(
            f"{path} is not in the order in which it was written.",
            fix="Make it again with the command that wrote it and --force.",
        )
    return table
