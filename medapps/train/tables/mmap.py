"""Tables in files: as large as the disk, in memory only where they are in use.

A working file has no name: it vanishes with its process, so nothing half-written can ever be read
again; what survives a crash are checkpoints, which are copies. Pages that are given back stay in
the system's cache while there is room.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medapps.arrays import forget
from medapps.errors import MedappsError
from medapps.store import disk_errors
from medapps.train.batches.partitions import Ranges
from medapps.train.tables.bf16 import as_numpy

_PAGE = mmap.PAGESIZE


def working_file(folder: Path | None, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """Zeros in a file without a name in `folder` (or where temporary files go), space reserved."""
    place = Path(folder or tempfile.gettempdir())
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        free = shutil.disk_usage(place).free
        if size > free:  # asked first: a reservation that fails would fill the disk for a moment
            raise MedappsError(
                f"A working file of {size / 2**30:.2f} GiB does not fit on the disk of {place}, "
                f"where {free / 2**30:.2f} GiB are free.",
                fix="Free some space, or choose another place with --workspace.",
            )
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
            return np.memmap(file, dtype, "r+", shape=shape)


def working_table(folder: Path | None, shape: tuple[int, ...]) -> Tensor:
    """The same as a float32 tensor; `rounding.as_numpy` gives the mapped array back."""
    array = working_file(folder, shape, "float32")
    table = torch.from_numpy(array)
    table.mapped = array  # type: ignore[attr-defined]
    return table


@dataclass
class WorkingSet:
    """The ranges of rows of some tables that are in memory now."""

    tables: Sequence[Tensor]
    ranges: Ranges = field(default=())

    def move(self, ranges: Ranges) -> None:
        """Give back the rows of ranges that are no longer needed; announce new ones."""
        for table in self.tables:
            array = as_numpy(table)
            for old in set(self.ranges) - set(ranges):
                _advise(array, old, mmap.MADV_DONTNEED)
            for new in set(ranges) - set(self.ranges):
                _advise(array, new, mmap.MADV_WILLNEED)
        self.ranges = ranges

    def clear(self) -> None:
        """Give everything back."""
        for table in self.tables:
            forget(as_numpy(table))
        self.ranges = ()


def _advise(array: np.ndarray, rows: tuple[int, int], advice: int) -> None:
    """Tell the system about the whole pages of some rows."""
    assert isinstance(array, np.memmap) and array._mmap is not None  # type: ignore[attr-defined]
    size = array.strides[0]
    begin, end = rows[0] * size // _PAGE * _PAGE, rows[1] * size // _PAGE * _PAGE
    if end > begin:
        array._mmap.madvise(advice, begin, end - begin)  # type: ignore[attr-defined]
