"""The three file formats of a crop, written in blocks of rows, since it may be larger than memory.

safetensors  vectors (entities, scale, relations), users, and an id map each for entities and
             relations; mapped into memory, nothing is read before it is used
npz          the same arrays in one uncompressed archive, which `np.load` reads as well; mapped too
parquet      entities (id, vector, user, scale) and relations (id, vector), for other tools; read
             whole. Spark knows no half floats, so float16 numbers are stored as float32, which
             changes none of them
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

VECTORS = {"safetensors": "vectors.safetensors", "parquet": "entities.parquet", "npz": "crop.npz"}
"""The file that holds the vectors of entities, by format."""
FORMATS = tuple(VECTORS)
BLOCK_BYTES = 2**20
"""float32 bytes per block: stays in the cache, yet large beside the cost of a call."""
_USERS, _ENTITIES, _RELATIONS = "users.safetensors", "entities.safetensors", "relations.safetensors"
_TABLE = "relations.parquet"
_ROW_GROUP = 100_000
_LOCAL_HEADER = 30


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


def write_files(draft: Draft, crop: CropStream) -> None:
    """Write the files of a crop into the draft."""
    path, others = draft.path(VECTORS[crop.form]), crop.source.relation_ids
    users = {} if crop.users is None else {"users": crop.users}
    if crop.form == "npz":
        names = {f"entity_{key}": array for key, array in crop.entity_ids.arrays().items()}
        if others is not None:
            names |= {f"relation_{key}": array for key, array in others.arrays().items()}
        write_npz(path, _vectors(crop) | users | names)
    elif crop.form == "parquet":
        write_table(path, crop)
        if crop.source.relations is not None and others is not None:
            draft.table(_TABLE, _table(others.names(), crop.source.relations))
    else:
        draft.arrays(VECTORS[crop.form], _vectors(crop))
        if users:
            draft.arrays(_USERS, users)
        crop.entity_ids.save(draft.path(_ENTITIES))
        if others is not None:
            others.save(draft.path(_RELATIONS))


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


def read_files(folder: Path, listed: Set[str], form: str, dtype: str) -> dict[str, Any]:
    """The fields of a Crop that its files hold, as far as its manifest lists them.

    Its vectors are of `dtype`; `users` is None when every row is one.
    """
    if form == "parquet":
        return _read_tables(folder, listed, dtype)
    if form == "npz":
        arrays = open_npz(folder / VECTORS[form])
        ids, others = _ids(arrays, "entity"), _ids(arrays, "relation")
    else:
        arrays = open_arrays(folder / VECTORS[form])
        if _USERS in listed:  # users are all that is taken from their file
            arrays["users"] = open_arrays(folder / _USERS)["users"]
        ids = IdMap.load(folder / _ENTITIES)
        others = IdMap.load(folder / _RELATIONS) if _RELATIONS in listed else None
    if "entities" not in arrays or ids is None:
        raise MedappsError("The crop's files hold no entities.", fix="Make it again with --force.")
    found = {key: arrays.get(key) for key in ("entities", "scale", "relations", "users")}
    return found | {"entity_ids": ids, "relation_ids": others}


def _ids(arrays: Mapping[str, np.ndarray], kind: str) -> IdMap | None:
    keys = ("integers", "offsets", "text", "order")
    parts = {key: arrays.get(f"{kind}_{key}") for key in keys}
    return None if all(part is None for part in parts.values()) else IdMap(**parts)


def _damaged(path: Path, why: str) -> MedappsError:
    return MedappsError(
        f"{path} is not {why}.", fix="Make it again with the command that wrote it and --force."
    )


def write_npz(path: Path, arrays: Mapping[str, np.ndarray | Blocks]) -> None:
    """Write named arrays as `np.savez` does, but block by block."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal arrays, equal bytes
            with archive.open(member, "w", force_zip64=True) as file:
                dtype = np.dtype(array.dtype)
                about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False}
                npy.write_array_header_1_0(file, about | {"shape": tuple(array.shape)})
                for piece in array.pieces if isinstance(array, Blocks) else [array]:
                    data = np.ascontiguousarray(piece, dtype)
                    file.write(data.reshape(-1).view(np.uint8).data)


def open_npz(path: Path) -> dict[str, np.ndarray]:
    """Map every array of an uncompressed archive read-only."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                file.seek(member.header_offset)
                header = file.read(_LOCAL_HEADER)
                skip = sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
                file.seek(member.header_offset + _LOCAL_HEADER + skip)
                if member.compress_type != zipfile.ZIP_STORED or npy.read_magic(file) != (1, 0):
                    raise ValueError(f"{member.filename} is compressed or of another version")
                shape, fortran, dtype = npy.read_array_header_1_0(file)
                if fortran or dtype.hasobject:
                    raise ValueError(f"{member.filename} is not a plain array")
                arrays[member.filename.removesuffix(".npy")] = (
                    np.memmap(path, dtype, "r", offset=file.tell(), shape=shape)
                    if np.prod(shape)
                    else np.empty(shape, dtype)
                )
        return arrays
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise _damaged(path, f"a readable npz archive: {error}") from error


def _table(names: pl.Series, vectors: np.ndarray) -> pl.DataFrame:
    """A table of id and vector."""
    wide = vectors.astype(np.float32) if vectors.dtype == np.float16 else vectors
    kind = pl.Array(pl.Int8 if wide.dtype == np.int8 else pl.Float32, wide.shape[1])
    column = pl.Series("vector", np.ascontiguousarray(wide), dtype=kind)
    return pl.DataFrame([names.alias("id"), column])


def write_table(path: Path, crop: CropStream) -> None:
    """Stream the entity table to one file through polars, a few blocks at a time."""
    is_user = np.full(crop.shape[0], crop.users is None)
    if crop.users is not None:
        is_user[crop.users] = True

    def tables() -> Iterator[pl.DataFrame]:
        for part, vectors, scale in crop.blocks():
            table = _table(crop.entity_ids.names(np.arange(part.start, part.stop)), vectors)
            extra = {} if scale is None else {"scale": pl.Series(scale)}
            yield table.with_columns(user=pl.Series(is_user[part]), **extra)

    kind = pl.Int8 if crop.dtype == "int8" else pl.Float32
    schema: dict[str, Any] = {"id": crop.entity_ids.dtype, "vector": pl.Array(kind, crop.shape[1])}
    schema |= {"user": pl.Boolean} | ({"scale": pl.Float32} if crop.dtype == "int8" else {})
    lazy = register_io_source(lambda *_: tables(), schema=pl.Schema(schema))
    lazy.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP)


def _read_tables(folder: Path, listed: Set[str], dtype: str) -> dict[str, Any]:
    table = _read_table(folder / VECTORS["parquet"])
    user, vectors = table["user"], table["vector"].to_numpy()
    found = {
        "entities": vectors.astype(np.float16) if dtype == "float16" else vectors,
        "entity_ids": IdMap.in_order(table["id"]),
        "scale": table["scale"].to_numpy() if "scale" in table.columns else None,
        "users": None if user.all() else np.flatnonzero(user.to_numpy()).astype(np.int32),
    }
    if _TABLE in listed:
        others = _read_table(folder / _TABLE)
        found |= {"relations": others["vector"].to_numpy()}
        found |= {"relation_ids": IdMap.in_order(others["id"])}
    return found


def _read_table(path: Path) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise _damaged(path, f"a readable Parquet file: {str(error).splitlines()[0]}") from error
    if table["id"].n_unique() != len(table):
        raise _damaged(path, "as it was written: it names an id twice")
    return table
