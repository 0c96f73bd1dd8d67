"""What keeps large sizes from overfitting: dropped coordinates and the N3 penalty.

Dropped coordinates: at each step a positive does without some numbers of its relation. A term of
PairRE and of the bilinear scorers has a number of the relation as a factor, so that a zero there
leaves the coordinate out, for the positive and all its negatives. What stays is stretched to keep
the score's size: square roots of sums of squares by (1 - p)^-1/2, other sums by 1 / (1 - p).

N3: weight * |x|^3, summed over the numbers of the rows of every positive triple. It belongs to
coordinates, not to sub-models, so it is counted once whatever their number.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from medapps.model.rules import RULES
from medapps.train.config import MedConfig


def draw_kept(draws: np.random.Generator, positives: int, config: MedConfig) -> np.ndarray:
    """float32 (positives, d): the factor of every coordinate, 0 where it is dropped."""
    measure = RULES[config.scorer].NORMS[config.norm]
    power = 0.5 if measure.is_distance and not measure.sums else 1.0
    added = np.diff((0, *config.dims))
    share = np.repeat(np.array(config.drops, np.float32), added)
    stretch = (1 - share) ** np.float32(-power)
    return np.where(draws.random((positives, config.dims[-1]), np.float32) < share, 0, stretch)


def apply_kept(
    related: Tensor, kept: np.ndarray | None, reals: int
) -> tuple[Tensor, Tensor | None]:
    """Relations (positives, width), `reals` numbers a coordinate, as the queries have them; and the
    factor of every number, None where nothing is dropped.
    """
    if kept is None:
        return related, None
    factor = torch.from_numpy(kept[:, : related.shape[1] // reals]).to(related.device)
    factor = factor.repeat_interleave(reals, 1)
    return related * factor, factor


def add_penalty_(grad: Tensor, rows: Tensor, weight: float) -> None:
    """Add the gradient by rows (k, width)."""
    grad.addcmul_(rows, rows.abs(), value=3 * weight)


def penalty(rows: Tensor, weight: float) -> Tensor:
    """Its value."""
    return rows.abs().pow_(3).sum() * weight
