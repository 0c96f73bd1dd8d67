"""The three file formats of a crop, and how each is read back.

safetensors  vectors (entities, scale, relations), users, and an id map each for entities and
             relations; mapped into memory, nothing is read before it is used
npz          the same arrays in one uncompressed archive; mapped too
parquet      entities (id, vector, user, scale) and relations (id, vector), for other tools;
             read whole
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.lib import format as npy
from polars.io.plugins import register_io_source

from medapps.arrays import PIECE, Blocks, forget, open_arrays
from medapps.crop.quantize import quantize, refuse_broken
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.store import Draft

if TYPE_CHECKING:
    from medapps.crop.crop import Crop


VECTORS = {
    "safetensors": "vectors.safetensors",
    "parquet": "entities.parquet",
    "npz": "crop.npz",
}
"""The file that holds the vectors of entities, by format."""
FORMATS = tuple(VECTORS)


@dataclass(frozen=True)
class Stored:
    """What the files of a crop hold."""

    entities: np.ndarray
    entity_ids: IdMap
    scale: np.ndarray | None = None
    relations: np.ndarray | None = None
    relation_ids: IdMap | None = None
    users: np.ndarray | None = None
    """None when every row is a user."""


def check_format(form: str) -> None:
    """Refuse an unknown file format."""
    if form not in FORMATS:
        raise MedappsError(f"--format takes {', '.join(FORMATS)}, not {form!r}.")


def write_files(draft: Draft, crop: CropStream) -> None:
    """Write the files of a crop into the draft."""
    form = crop.form
    if form == "npz":
        write_npz(draft.path(VECTORS[form]), _vectors(crop) | _names(crop))
    elif form == "parquet":
        write_entities(draft.path(VECTORS[form]), crop)
        if crop.source.relations is not None and crop.source.relation_ids is not None:
            frame = _table(crop.source.relation_ids.names(), crop.source.relations)
            draft.table("relations.parquet", frame)
    else:
        draft.arrays(VECTORS[form], _vectors(crop))
        if crop.users is not None:
            draft.arrays("users.safetensors", {"users": crop.users})
        crop.entity_ids.save(draft.path("entities.safetensors"))
        if crop.source.relation_ids is not None:
            crop.source.relation_ids.save(draft.path("relations.safetensors"))


def _vectors(crop: CropStream) -> dict[str, np.ndarray | Blocks]:
    """Entities in blocks, then the scales, which are known when the last block has passed."""
    scale = np.empty(crop.shape[0], np.float32) if crop.dtype == "int8" else None

    def pieces() -> Iterator[np.ndarray]:
        for part, vectors, steps in crop.blocks():
            if scale is not None:
                scale[part] = steps
            yield vectors

    arrays: dict[str, np.ndarray | Blocks] = {"entities": Blocks(crop.shape, crop.dtype, pieces())}
    if scale is not None:
        arrays["scale"] = scale
    if crop.source.relations is not None:
        arrays["relations"] = np.asarray(crop.source.relations, np.float32)
    return arrays


def _names(crop: CropStream) -> dict[str, np.ndarray | Blocks]:
    arrays: dict[str, np.ndarray | Blocks] = {}
    if crop.users is not None:
        arrays["users"] = crop.users
    for kind, ids in (("entity", crop.entity_ids), ("relation", crop.source.relation_ids)):
        if ids is not None:
            arrays |= {f"{kind}_{key}": array for key, array in ids.arrays().items()}
    return arrays


def read_files(folder: Path, listed: Set[str], form: str, dtype: str) -> Stored:
    """Open those files of a crop that its manifest lists; its vectors are of `dtype`."""
    if form == "parquet":
        ids, vectors, scale, users = read_entities(folder / VECTORS[form], dtype)
        others = "relations.parquet"
        relation_ids, relations = (
            read_relations(folder / others) if others in listed else (None, None)
        )
        return Stored(vectors, ids, scale, relations, relation_ids, users)
    if form == "npz":
        arrays = open_npz(folder / VECTORS[form])
        return _stored(arrays, _ids(arrays, "entity"), _ids(arrays, "relation"))
    arrays = open_arrays(folder / VECTORS[form])
    if "users.safetensors" in listed:
        arrays["users"] = open_arrays(folder / "users.safetensors")["users"]
    names = "relations.safetensors"
    relation_map = IdMap.load(folder / names) if names in listed else None
    return _stored(arrays, IdMap.load(folder / "entities.safetensors"), relation_map)


def _stored(arrays: Mapping[str, np.ndarray], ids: IdMap | None, others: IdMap | None) -> Stored:
    if "entities" not in arrays or ids is None:
        raise MedappsError("The crop's files hold no entities.", fix="Make it again with --force.")
    rest = {key: arrays.get(key) for key in ("scale", "relations", "users")}
    return Stored(entities=arrays["entities"], entity_ids=ids, relation_ids=others, **rest)


def _ids(arrays: Mapping[str, np.ndarray], kind: str) -> IdMap | None:
    keys = ("integers", "offsets", "text", "order")
    parts = {key: arrays.get(f"{kind}_{key}") for key in keys}
    return None if all(part is None for part in parts.values()) else IdMap(**parts)


BLOCK_BYTES = 2**20
"""float32 bytes per block: stays in the cache, yet large beside the cost of a call."""


@dataclass(frozen=True)
class CropStream:
    """Some rows of a crop, in the dtype in which they will be stored."""

    source: Crop
    dtype: str
    form: str = "safetensors"
    rows: np.ndarray | None = None
    """int32, ascending: the rows to keep; None keeps all."""
    block_bytes: int = BLOCK_BYTES
    entity_ids: IdMap = field(init=False)
    users: np.ndarray | None = field(init=False)
    """int32, ascending: which of the kept rows are users; None when all are."""

    def __post_init__(self) -> None:
        source, rows = self.source, self.rows
        ids = source.entity_ids if rows is None else source.entity_ids.subset(rows)
        users = source.users if rows is None else _positions(source.users, rows)
        object.__setattr__(self, "entity_ids", ids)
        object.__setattr__(self, "users", None if len(users) == len(ids) else users)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and numbers per row."""
        return len(self.entity_ids), self.source.width

    def blocks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray | None]]:
        """Consecutive (rows, vectors, scale of int8 rows), each a view or a copy of one block."""
        count, width = self.shape
        step = max(1, self.block_bytes // (4 * max(1, width)))
        held = 0
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            yield part, *self._encoded(part)
            held += (part.stop - part.start) * self.source.entities.strides[0]
            if held > PIECE:  # a mapped source leaves nothing behind in memory
                forget(self.source.entities)
                held = 0

    def _encoded(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        source = self.source
        picked = part if self.rows is None else self.rows[part]
        if source.dtype == "int8" and self.dtype == "int8":  # already steps: do not round twice
            assert source.scale is not None
            return np.asarray(source.entities[picked]), np.asarray(source.scale[picked])
        vectors = source.rows(picked)
        refuse_broken(vectors, lambda row: self.entity_ids.names(np.array([part.start + row]))[0])
        return quantize(vectors, self.dtype)


def _positions(users: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int32: where in `rows` the users stand; both ascending."""
    if not len(users):
        return np.empty(0, np.int32)
    at = np.minimum(np.searchsorted(users, rows), len(users) - 1)
    return np.flatnonzero(users[at] == rows).astype(np.int32)


_LOCAL_HEADER = 30


def write_npz(path: Path, arrays: Mapping[str, np.ndarray | Blocks]) -> None:
    """Write named arrays as `np.savez` does, but block by block."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal arrays, equal bytes
            with archive.open(member, "w", force_zip64=True) as file:
                dtype = np.dtype(array.dtype)
                about = {
                    "descr": npy.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": tuple(array.shape),
                }
                npy.write_array_header_1_0(file, about)
                for piece in array.pieces if isinstance(array, Blocks) else [array]:
                    data = np.ascontiguousarray(piece, dtype)
                    file.write(data.reshape(-1).view(np.uint8).data)


def open_npz(path: Path) -> dict[str, np.ndarray]:
    """Map every array of an uncompressed archive read-only."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{member.filename} is compressed")
                file.seek(member.header_offset)
                header = file.read(_LOCAL_HEADER)
                skip = int.from_bytes(header[26:28], "little")
                skip += int.from_bytes(header[28:30], "little")
                file.seek(member.header_offset + _LOCAL_HEADER + skip)
                if npy.read_magic(file) != (1, 0):
                    raise ValueError(f"{member.filename} is not a version 1.0 array")
                shape, fortran, dtype = npy.read_array_header_1_0(file)
                if fortran or dtype.hasobject:
                    raise ValueError(f"{member.filename} is not a plain array")
                name = member.filename.removesuffix(".npy")
                arrays[name] = (
                    np.memmap(path, dtype, "r", offset=file.tell(), shape=shape)
                    if np.prod(shape)
                    else np.empty(shape, dtype)
                )
        return arrays
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise MedappsError(
            f"{path} is not a readable npz archive: {error}.",
            fix="Make it again with the command that wrote it and --force.",
        ) from error


_ROW_GROUP = 100_000
_TYPES: dict[str, pl.DataType] = {
    "float32": pl.Float32(),
    "float16": pl.Float32(),
    "int8": pl.Int8(),
}


def _table(names: pl.Series, vectors: np.ndarray) -> pl.DataFrame:
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
            table = _table(names, vectors).with_columns(pl.Series("user", is_user[part]))
            if scale is not None:
                table = table.with_columns(pl.Series("scale", scale))
            yield table.select(columns or list(schema))

    lazy = register_io_source(batches, schema=schema)
    lazy.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


def read_entities(
    path: Path, dtype: str
) -> tuple[IdMap, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Ids, vectors, scale and users (None when all are) of a written entity table."""
    table = _read_table(path)
    scale = table["scale"].to_numpy() if "scale" in table.columns else None
    users = None
    if not table["user"].all():
        users = np.flatnonzero(table["user"].to_numpy()).astype(np.int32)
    vectors = _column(table)
    if dtype == "float16" and vectors.dtype == np.float32:
        vectors = vectors.astype(np.float16)
    return IdMap.in_order(table["id"]), vectors, scale, users


def read_relations(path: Path) -> tuple[IdMap, np.ndarray]:
    """Ids and vectors of a written relation table."""
    table = _read_table(path)
    return IdMap.in_order(table["id"]), _column(table)


def _column(table: pl.DataFrame) -> np.ndarray:
    column = table["vector"]
    if not len(column):
        kind = column.dtype
        assert isinstance(kind, pl.Array)
        return np.empty((0, kind.shape[0]), np.float32)
    return column.to_numpy()


def _read_table(path: Path) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise MedappsError(
            f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}.",
            fix="Make it again with the command that wrote it and --force.",
        ) from error
    if table["id"].n_unique() != len(table):
        raise MedappsError(
            f"{path} names an id twice.",
            fix="Make it again with the command that wrote it and --force.",
        )
    return table
