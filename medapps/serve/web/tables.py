"""Arrays in plain files: little-endian numbers one after another, named by their content.

A table of vectors is float32, or int8 with one float32 scale per row (`NAME.scale`). Where an array
lies is told by its file, offset in bytes, number type and shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from medapps.crop.quantize import dequantize, quantize

Places = dict[str, dict[str, Any]]
"""Name of an array to its file, offset ("at"), number type and shape."""
_ALIGN = 8
SCALE = ".scale"


def write_tables(folder: Path, stem: str, arrays: Mapping[str, np.ndarray]) -> Places:
    """Write arrays into one file `STEM-DIGEST.bin`; equal content gives the same file."""
    places: Places = {}
    pieces, at = [], 0
    for name, array in arrays.items():
        piece = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        places[name] = {"at": at, "dtype": array.dtype.name, "shape": list(array.shape)}
        piece += bytes(-len(piece) % _ALIGN)
        pieces.append(piece)
        at += len(piece)
    whole = b"".join(pieces)
    file = f"{stem}-{hashlib.sha256(whole).hexdigest()[:12]}.bin"
    (folder / file).write_bytes(whole)
    return {name: {"file": file} | place for name, place in places.items()}


def read_table(folder: Path, places: Places, name: str) -> np.ndarray:
    """An array as it was before it was rounded, as far as int8 allows."""
    values = _plain(folder, places[name])
    if name + SCALE not in places:
        return values
    return dequantize(values, _plain(folder, places[name + SCALE]))


def read_sparse(folder: Path, places: Places, columns: int) -> csr_matrix:
    """A sparse matrix: of ones where no values are kept; the scale of int8 is one per row."""
    pointer, column = (_plain(folder, places[name]) for name in ("pointer", "columns"))
    values = np.ones(len(column), np.float32)
    if "values" in places:
        values *= _plain(folder, places["values"])
    if "values" + SCALE in places:
        values *= np.repeat(_plain(folder, places["values" + SCALE]), np.diff(pointer))
    entries = values, column.astype(np.int32), pointer.astype(np.int32)
    return csr_matrix(entries, (len(pointer) - 1, columns))


def _plain(folder: Path, place: Mapping[str, Any]) -> np.ndarray:
    count, kind = int(np.prod(place["shape"])), np.dtype(place["dtype"]).newbyteorder("<")
    with (folder / place["file"]).open("rb") as file:
        file.seek(place["at"])
        values = np.frombuffer(file.read(count * kind.itemsize), kind)
    return values.reshape(place["shape"]).astype(kind.newbyteorder("="))


def rounded(name: str, rows: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    """A table of vectors in `dtype`, with its scale where it needs one."""
    values, scale = quantize(rows, dtype)
    return {name: values} if scale is None else {name: values, name + SCALE: scale}


def sparse_arrays(matrix: csr_matrix, dtype: str | None = None) -> dict[str, np.ndarray]:
    """A sparse matrix by rows; int8 has one scale per row, and without a type all are ones."""
    small = np.uint16 if matrix.shape[1] <= 2**16 else np.uint32
    arrays = {
        "pointer": matrix.indptr.astype(np.uint32),
        "columns": matrix.indices.astype(small),
    }
    if dtype == "float32":
        arrays["values"] = matrix.data.astype(np.float32)
    if dtype == "int8":
        count = np.diff(matrix.indptr)
        most = np.zeros(len(count), np.float32)
        np.maximum.at(most, np.repeat(np.arange(len(count)), count), np.abs(matrix.data))
        scale = most / np.float32(127)
        each = np.repeat(scale, count)
        steps = np.divide(matrix.data, each, out=np.zeros_like(each), where=each > 0)
        arrays |= {"values": np.rint(steps).astype(np.int8), "values" + SCALE: scale}
    return arrays
