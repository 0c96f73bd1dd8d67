"""float32 rows to float16 or int8 and back."""

from __future__ import annotations

import numpy as np

from medapps.errors import MedappsError

DTYPES = ("float32", "float16", "int8")


def quantize(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows in `dtype` and, for int8, the float32 scale of each row.

    The error of a coordinate is at most half a scale step: max|row| / 254.
    """
    rows = np.asarray(rows, np.float32)
    if dtype == "float32":
        return rows, None
    if dtype == "float16":
        if len(rows) and np.abs(rows).max() > np.finfo(np.float16).max:
            raise MedappsError("Vectors exceed the range of float16.", fix="Use --dtype float32.")
        return rows.astype(np.float16), None
    if dtype == "int8":
        scale = np.abs(rows).max(1, initial=0.0) / np.float32(127)
        steps = np.divide(rows, scale[:, None], out=np.zeros_like(rows), where=scale[:, None] > 0)
        return np.rint(steps).astype(np.int8), scale.astype(np.float32)
    raise MedappsError(f"--dtype takes {', '.join(DTYPES)}, not {dtype!r}.")


def dequantize(rows: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """float32 rows again."""
    wide = rows.astype(np.float32, copy=False)
    return wide if scale is None else wide * scale[:, None]
