"""N3: weight * |x|^3, summed over the numbers of the rows of every positive triple.

It belongs to coordinates, not to sub-models, so it is counted once whatever their number.
"""

from __future__ import annotations

from torch import Tensor


def add_penalty_(grad: Tensor, rows: Tensor, weight: float) -> None:
    """Add the gradient by rows (k, width)."""
    grad.addcmul_(rows, rows.abs(), value=3 * weight)


def penalty(rows: Tensor, weight: float) -> Tensor:
    """Its value."""
    return rows.abs().pow_(3).sum() * weight
