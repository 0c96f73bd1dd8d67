"""PairRE: the distance of head and tail, each on the unit sphere and stretched by its own vector.

    D = || h / |h| * r_head - t / |t| * r_tail ||

A coordinate of a relation is (r_head, r_tail) side by side. Every size divides by the length of its
own prefix, so each is a true PairRE. The query is three vectors, one after another: the source
times its vector, the other end's vector, and the source itself for its lengths. Norm "l1" is the
published sum of absolute values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.model.spec import EPSILON, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor

REALS = (1, 2, 3)
KERNELS = {"l2": "paired", "l1": "paired_sums"}
RELATIONS = "signs"
DEFAULTS: dict[str, Any] = {}


def score(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin - scale * ||unit head * r_head - unit tail * r_tail||; relation rows (k, 2d)."""
    h, t = (x / np.sqrt(np.square(x).sum(1) + np.float32(EPSILON))[:, None] for x in (head, tail))
    difference = h * relation[:, 0::2] - t * relation[:, 1::2]
    if spec.norm == "l1":
        distance = np.abs(difference).sum(1)
    else:
        distance = np.sqrt(np.square(difference).sum(1) + np.float32(EPSILON))
    return np.float32(spec.margin) - np.float32(spec.scale) * distance


def lengths(size: float, dim: int, norm: str) -> tuple[float, float]:
    """Relations start as mirrors, which are symmetric: with entries of plus or minus one size, two,
    or what gives sums of absolute values the same distances as in ten dimensions.
    """
    entry = 2.0 * (10 / dim) ** 0.5 if norm == "l1" else 2.0
    return size, entry * (2 * dim) ** 0.5


def query(source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
    """(source * its vector | the other end's vector | source)."""
    own, other = (0, 1) if side == "tail" else (1, 0)
    width = source.shape[1]
    out[:, :width] = source * relation[:, own::2]
    out[:, width : 2 * width] = relation[:, other::2]
    out[:, 2 * width :] = source
    return out


def query_backward(
    dquery: Tensor,
    source: Tensor,
    relation: Tensor,
    side: str,
    dsource: Tensor,
    drelation: Tensor,
) -> None:
    """The three parts of the query, each to where it came from."""
    own, other = (0, 1) if side == "tail" else (1, 0)
    width = source.shape[1]
    stretched, apart, plain = dquery.split(width, 1)
    dsource.copy_(plain).addcmul_(stretched, relation[:, own::2])
    drelation[:, own::2] = stretched * source
    drelation[:, other::2] = apart
