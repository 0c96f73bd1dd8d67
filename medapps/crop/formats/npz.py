"""npz archives without compression, streamed out and mapped in; `np.load` reads them as well."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from medapps.arrays import Blocks
from medapps.errors import MedappsError

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
