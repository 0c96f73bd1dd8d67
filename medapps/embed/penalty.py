"""N3: weight * |x|^3, summed over the numbers of the rows of every positive triple.

It belongs to coordinates, not to sub-models, so it is counted once whatever their number. With
dropped coordinates a relation's number r counts as k^2 |r|^3, k being its factor: 0 where it is
dropped, so that the rarer a number is used, the more it is penalised where it is.
"""

from __future__ import annotations

from torch import Tensor


def add_penalty_(grad: Tensor, used: Tensor, weight: float) -> None:
    """Add the gradient by rows (k, width) to `grad`, given the rows times their factors."""
    grad.addcmul_(used, used.abs(), value=3 * weight)


def penalty(rows: Tensor, used: Tensor, weight: float) -> Tensor:
    """Its value."""
    return used.square().mul_(rows.abs()).sum() * weight
