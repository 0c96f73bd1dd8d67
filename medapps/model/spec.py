"""What turns the distance of a scorer into the score of one size."""

from __future__ import annotations

from dataclasses import dataclass

SUMS = ("l1", "moduli")
"""Norms that add up absolute values: their distances grow in proportion to the dims."""
EPSILON = 1e-12
"""Added under square roots, in training and on devices alike."""


@dataclass(frozen=True)
class ScoreSpec:
    """Everything that turns vectors into a score: margin - scale * distance."""

    scorer: str = "transe"
    norm: str = "l2"
    """One of the norms that the scorer knows."""
    scale: float = 1.0
    """c_i: multiplies the distance of this prefix."""
    margin: float = 0.0
