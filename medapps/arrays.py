"""Arrays on disk in the safetensors format, with NumPy alone: streamed out, memory-mapped in.

A file is eight bytes of header length, a JSON header, then the raw little-endian arrays. Writing
takes arrays or `Blocks`, so a table larger than memory passes through; reading maps the file and
copies nothing. bfloat16, which NumPy lacks, travels as uint16 bit patterns under the name BF16.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medapps.errors import MedappsError

_NUMBERS = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")
_NAME_OF = {np.dtype(n): f"{n[0].upper()}{8 * int(n[1])}" for n in _NUMBERS}
_NAME_OF[np.dtype(bool)] = "BOOL"
_DTYPE_OF = {name: dtype for dtype, name in _NAME_OF.items()} | {"BF16": np.dtype("uint16")}
_HEADER_LIMIT = 100_000_000
PIECE = 64 * 2**20
"""Bytes that are written at a time."""


@dataclass(frozen=True)
class Blocks:
    """An array that arrives as consecutive pieces along its first axis."""

    shape: tuple[int, ...]
    dtype: str
    pieces: Iterable[np.ndarray]
    safetensors_dtype: str | None = None
    """Overrides the name in the header, e.g. BF16 for uint16 bit patterns."""


def bfloat16(bits: np.ndarray) -> Blocks:
    """uint16 bit patterns as an array that other tools read as bfloat16."""
    return Blocks(bits.shape, "uint16", _pieces(bits), "BF16")


def widened(bits: np.ndarray) -> np.ndarray:
    """float32 of the bit patterns of bfloat16."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def forget(array: np.ndarray) -> None:
    """Give the pages of a mapped file back to the system, which reads them again when needed."""
    if not isinstance(array, np.memmap) or array.mode not in ("r", "r+"):
        return
    block = getattr(array, "_mmap", None)
    if block is not None and hasattr(mmap, "MADV_DONTNEED"):
        block.madvise(mmap.MADV_DONTNEED)


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of a large array, a piece at a time, so that a mapped one is never whole in memory."""
    step = max(1, PIECE // max(1, array[:1].nbytes)) if array.ndim else 1
    if array.ndim == 0 or len(array) <= step:
        yield array
        return
    for start in range(0, len(array), step):
        yield array[start : start + step]
        forget(array)


@dataclass(frozen=True)
class Hole:
    """An array that is left out when the file is written; `fill` puts its rows in place."""

    shape: tuple[int, ...]
    dtype: str
    safetensors_dtype: str | None = None


def write_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray | Blocks | Hole],
    metadata: Mapping[str, str] | None = None,
) -> str | None:
    """Write named arrays to `path` and return the SHA-256 of its bytes, None when it has holes.

    The caller makes it atomic by writing into a draft folder.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, array in arrays.items():
        code = getattr(array, "safetensors_dtype", None) or _NAME_OF[np.dtype(array.dtype)]
        size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
        place = [offset, offset + size]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": place}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)  # arrays start on a cache line after the 8-byte length
    digest = hashlib.sha256()  # while the bytes are at hand: a large file is not read again
    with path.open("wb") as file:
        for data in (len(text).to_bytes(8, "little"), text):
            file.write(data)
            digest.update(data)
        for name, array in arrays.items():
            begin, end = header[name]["data_offsets"]  # type: ignore[index]
            if isinstance(array, Hole):
                file.truncate(file.seek(end - begin, 1))
                continue
            pieces = array.pieces if isinstance(array, Blocks) else _pieces(array)
            written = 0
            for piece in pieces:
                block = np.ascontiguousarray(piece, dtype=array.dtype).reshape(-1).view(np.uint8)
                file.write(block.data)
                digest.update(block.data)
                written += block.nbytes
            assert written == end - begin, f"{name}: {written} bytes came, {end - begin} announced"
    return None if any(isinstance(a, Hole) for a in arrays.values()) else digest.hexdigest()


def fill(path: Path, name: str, first: int, rows: np.ndarray) -> None:
    """Put rows from `first` on into an array of `path`; others may fill others meanwhile."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        shape, width = entry["shape"], math.prod(entry["shape"][1:]) * rows.dtype.itemsize
        assert list(rows.shape[1:]) == shape[1:] and first + len(rows) <= shape[0], (shape, first)
        file.seek(8 + length + entry["data_offsets"][0] + first * width)
        for piece in range(0, len(rows), 65536):
            data = np.ascontiguousarray(rows[piece : piece + 65536])
            file.write(data.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def open_arrays(path: Path) -> dict[str, np.ndarray]:
    """Map every array of `path` read-only; nothing is read until it is touched."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _HEADER_LIMIT):
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(length), object_pairs_hook=_once)
        start = 8 + length
        arrays: dict[str, np.ndarray] = {}
        for name, dtype, shape, begin in list(_layout(header, size - start)):
            if math.prod(shape):
                arrays[name] = np.memmap(path, dtype, "r", offset=start + begin, shape=shape)
            else:
                arrays[name] = np.empty(shape, dtype)
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MedappsError(
            f"{path} is not a readable array file: {error}.",
            fix="It was cut short or altered; make it again with --force.",
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in the header")
    return found


def _layout(
    header: dict[str, Any], size: int
) -> Iterator[tuple[str, np.dtype, tuple[int, ...], int]]:
    """Name, type, shape and first byte of each array; together they are all `size` bytes.

    Refuses what the safetensors library refuses: overlaps, gaps, bytes that belong to no array.
    """
    notes = header.pop("__metadata__", None)
    if notes is not None and not all(type(note) is str for note in notes.values()):
        raise ValueError("its metadata are no strings")
    at = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = _DTYPE_OF[entry["dtype"]], entry["shape"]
        begin, end = entry["data_offsets"]
        if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
            raise ValueError(f"shape or place of array {name!r} is no whole number")
        if begin != at or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"array {name!r} does not fit to its neighbours")
        yield name, dtype, tuple(shape), begin
        at = end
    if at != size:
        raise ValueError(f"its arrays take {at:,} bytes, but it has {size:,} for them")
