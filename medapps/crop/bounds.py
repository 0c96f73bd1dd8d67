"""How far float16 or int8 vectors can move a score: a bound that holds for every triple.

A distance moves no more than its ends do. With u_h, u_t the largest error of a coordinate of head
and tail (`quantize.coordinate_error`) and w numbers per entity:

    l1    |dD| <= w (u_h + u_t)
    l2    |dD| <= sqrt(w) (u_h + u_t) =: b
    l2sq  |dD| <= b (2 sqrt(D) + b)

The score moves by c |dD|; relations stay float32. A last part in a million covers float32 sums.
"""

from __future__ import annotations

import numpy as np

from medapps.crop.quantize import coordinate_error
from medapps.crop.score import SCORES, ScoreSpec

_ROUNDING = np.float32(4e-6)


def score_error(
    head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec, dtype: str
) -> np.ndarray:
    """float32 (k,): bound on |score in `dtype` - score in float32|; rows float32 (k, w)."""
    width = head.shape[1]
    moved = coordinate_error(head, dtype) + coordinate_error(tail, dtype)
    exact = SCORES[spec.scorer](head, relation, tail, spec)
    distance = (np.float32(spec.margin) - exact) / np.float32(spec.scale)
    if spec.norm == "l1":
        change = width * moved
    else:
        change = np.sqrt(np.float32(width)) * moved
        if spec.norm == "l2sq":
            change = change * (2 * np.sqrt(np.maximum(distance, 0)) + change)
    sizes = np.abs(head).sum(1) + np.abs(relation).sum(1) + np.abs(tail).sum(1)
    if spec.norm == "l2sq":
        sizes = np.square(sizes)
    rounding = _ROUNDING * (np.float32(spec.scale) * sizes + np.abs(exact) + abs(spec.margin))
    return (np.float32(spec.scale) * change + rounding).astype(np.float32)
