"""How far float16 or int8 vectors can move a score: a bound that holds for every triple.

With u_h, u_t the largest error of a number of head and tail (`coordinate_error`) and w
numbers per entity, head and tail move by e_h, e_t <= sqrt(w) u. Where the query moves as its source
does (Euclidean distances and sums of moduli), a distance moves no more than its ends:

    l1, moduli   |dD| <= w (u_h + u_t)
    l2           |dD| <= e_h + e_t =: b

A product multiplies by a relation, no number of an end by more than L, the largest sum of absolute
values in a coordinate of the relation; PairRE does so with
ends of length one, which move by at most 2 e / |end|:

    product      |dD| <= L (e_h |t| + |h| e_t + e_h e_t)
    paired       |dD| <= 2 L (e_h / |h| + e_t / |t|) =: b; sums: sqrt(w) b

The score moves by c |dD|; relations stay float32. A last part in a million covers float32 sums.
"""

from __future__ import annotations

import numpy as np

from medapps.model.rule import ScoreSpec
from medapps.model.rules import RULES

_ROUNDING = np.float32(4e-6)
_LEAST = np.float32(1e-12)
_SMALLEST = float(np.finfo(np.float32).tiny)


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


def score_error(
    head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec, dtype: str
) -> np.ndarray:
    """float32 (k,): bound on |score in `dtype` - score in float32|; rows float32 (k, w)."""
    rule = RULES[spec.scorer]
    measure, root = rule.NORMS[spec.norm], np.sqrt(np.float32(head.shape[1]))
    moved = [root * coordinate_error(end, dtype) for end in (head, tail)]
    exact = rule.score(head, relation, tail, spec)
    lengths = [np.sqrt(np.square(end).sum(1)) for end in (head, tail)]
    dim = head.shape[1] // rule.REALS[0]
    factor = np.abs(relation).reshape(len(relation), dim, -1).sum(2).max(1, initial=0)  # L
    sizes = np.abs(head).sum(1) + np.abs(relation).sum(1) + np.abs(tail).sum(1)
    if not measure.is_distance:
        change = factor * (moved[0] * lengths[1] + lengths[0] * moved[1] + moved[0] * moved[1])
        sizes = factor * lengths[0] * lengths[1]
    elif measure.scale_free:
        shares = [e / np.maximum(x, _LEAST) for e, x in zip(moved, lengths, strict=True)]
        change = 2 * factor * (shares[0] + shares[1])
        sizes = factor * root if measure.sums else factor
    else:
        change = moved[0] + moved[1]
    if measure.sums:
        change = root * change
    rounding = _ROUNDING * (np.float32(spec.scale) * sizes + np.abs(exact) + abs(spec.margin))
    return (np.float32(spec.scale) * change + rounding).astype(np.float32)
