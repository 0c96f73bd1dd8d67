"""NaN and infinities in a table, looked for a piece at a time."""

from __future__ import annotations

import numpy as np

from medapps.arrays import PIECE, forget, widened


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
