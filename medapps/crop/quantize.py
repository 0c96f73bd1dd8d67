"""float32 rows to float16 or int8 and back, and how far off a coordinate can be afterwards."""

from __future__ import annotations

import numpy as np

from medapps.arrays import widened
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
    if dtype == "int8":
        return _to_int8(rows)
    raise MedappsError(f"--dtype takes {', '.join(DTYPES)}, not {dtype!r}.")


def _to_int8(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    columns = np.array(
        rows.T, order="C"
    )  # (width, k): a row is short, a column of many rows is not
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


def coordinate_error(rows: np.ndarray, dtype: str) -> np.ndarray:
    """float32 (k,): no coordinate of a float32 row moves further than this in `dtype`.

    float16 keeps eleven significant bits: max|row| / 2^11, and 2^-24 near zero. int8 is off by half
    a step: max|row| / 254, and one part in ten thousand for the float32 arithmetic itself.
    """
    largest = np.abs(rows).max(1, initial=0).astype(np.float32)
    if dtype == "float32":
        return np.zeros_like(largest)
    if dtype == "float16":
        return np.maximum(largest / np.float32(2**11), np.float32(2**-24))
    return largest * np.float32(1.0001 / 254) + np.float32(128 * _SMALLEST)
