"""Number types of vectors: float16 and int8 and back, and what is not finite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medapps.arrays import PIECE, forget, widened
from medapps.errors import MedappsError

DTYPES = ("float32", "float16", "int8")
"""From the most to the least precise."""
_SMALLEST = float(np.finfo(np.float32).tiny)
_HALF_MAX = float(np.finfo(np.float16).max)


def quantize(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows in `dtype` and, for int8, the float32 scale of each row; rows must be finite."""
    rows = np.asarray(rows, np.float32)
    if dtype == "float32":
        return rows, None
    if dtype == "float16":
        if rows.size and max(rows.max(), -rows.min()) > _HALF_MAX:
            raise MedappsError("Vectors exceed the range of float16.", fix="Use --dtype float32.")
        return rows.astype(np.float16), None
    assert dtype == "int8", dtype
    return _to_int8(rows)


def _to_int8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # (width, k): a row is short, a column of many rows is not
    columns = np.array(rows.T, order="C")
    scale = np.abs(columns).max(0, initial=0) / np.float32(127)
    scale[scale < _SMALLEST] = 0  # a row of (almost) zeros stays zero
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = np.rint(np.multiply(columns, inverse, out=columns), out=columns)
    return np.ascontiguousarray(steps.astype(np.int8).T), scale


def dequantize(rows: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """float32 rows again; uint16 are bit patterns of bfloat16."""
    if rows.dtype == np.uint16:
        return widened(rows)
    wide = rows.astype(np.float32, copy=False)
    return wide if scale is None else wide * scale[:, None]


def broken_row(table: np.ndarray) -> int | None:
    """The first row with a number that is not finite; uint16 are bit patterns of bfloat16."""
    step = max(1, PIECE // max(1, table[:1].nbytes))
    for start in range(0, len(table), step):
        piece = table[start : start + step]
        values = widened(piece) if piece.dtype == np.uint16 else piece
        # NaN passes through min and max, so that no table of booleans is needed
        if values.size and not np.isfinite([values.min(), values.max()]).all():
            return start + int(np.argmin(np.isfinite(values).all(1)))
        forget(table)
    return None


def refuse_broken(table: np.ndarray, name: Callable[[int], object], what: str = "") -> None:
    """Refuse a table with a number that is not finite, by the name of its row."""
    row = broken_row(table)
    if row is not None:
        raise MedappsError(
            f"The vector of {what}{name(row)!r} holds a number that is not finite: "
            "the training diverged.",
            fix="Train again with a lower learning rate: --set train.lr=0.01.",
        )
