"""N3: weight * |x|^3, summed over the numbers of the rows of every positive triple.

It belongs to coordinates, not to sub-models, so it is counted once whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Penalty:
    """The weight of every number of an entity and of a relation."""

    entities: Tensor  # (width,)
    relations: Tensor

    @classmethod
    def of(
        cls,
        weights: Sequence[float],
        entities: Sequence[int],
        relations: Sequence[int],
        device: torch.device,
    ) -> Penalty | None:
        """From one weight per segment, and where the segments of either table begin and end."""
        if not any(weights):
            return None
        each = torch.tensor(weights)
        columns = (each.repeat_interleave(torch.tensor(x).diff()) for x in (entities, relations))
        return cls(*(column.to(device) for column in columns))


def add_penalty_(grad: Tensor, rows: Tensor, weight: Tensor, of: int) -> None:
    """Add the gradient by rows (k, width) of a batch of `of` positives."""
    grad.addcmul_(rows * weight[: rows.shape[1]], rows.abs(), value=3 / of)


def penalty(rows: Tensor, weight: Tensor, of: int) -> Tensor:
    """Its value."""
    return (rows.abs().pow_(3) @ weight[: rows.shape[1]]).sum() / of
