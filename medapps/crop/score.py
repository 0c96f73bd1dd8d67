"""Scores of single triples in NumPy: what a device computes, and the truth for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-12
"""Added under square roots, in training and on devices alike."""


@dataclass(frozen=True)
class ScoreSpec:
    """Everything that turns vectors into a score: margin - scale * distance."""

    scorer: str = "transe"
    norm: str = "l2"
    """l2, l1 or l2sq."""
    scale: float = 1.0
    """c_i: multiplies the distance of this prefix."""
    margin: float = 0.0


def transe(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin - scale * ||head + relation - tail||; arrays (k, d), result float32 (k,)."""
    difference = head + relation - tail
    if spec.norm == "l1":
        distance = np.abs(difference).sum(1)
    else:
        distance = np.square(difference).sum(1)
        if spec.norm == "l2":
            distance = np.sqrt(distance + np.float32(EPSILON))
    return np.float32(spec.margin) - np.float32(spec.scale) * distance


Score = Callable[[np.ndarray, np.ndarray, np.ndarray, ScoreSpec], np.ndarray]
SCORES: dict[str, Score] = {"transe": transe}
