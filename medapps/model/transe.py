"""TransE: the distance between head + relation and tail; one real per coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.model.spec import EPSILON, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor

REALS = (1, 1, 1)
KERNELS = {"l2": "distance"}
RELATIONS = "plain"
DEFAULTS: dict[str, Any] = {}


def score(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin - scale * ||head + relation - tail||; arrays (k, d), result float32 (k,)."""
    square = np.square(head + relation - tail).sum(1)
    distance = np.sqrt(square + np.float32(EPSILON))
    return np.float32(spec.margin) - np.float32(spec.scale) * distance


def lengths(size: float, dim: int, norm: str) -> tuple[float, float]:
    """Entities and relations start alike."""
    return size, size


def query(source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
    """head + relation when tails are asked, tail - relation when heads are."""
    return out.copy_(source).add_(relation, alpha=1 if side == "tail" else -1)


def query_backward(
    dquery: Tensor,
    source: Tensor,
    relation: Tensor,
    side: str,
    dsource: Tensor,
    drelation: Tensor,
) -> None:
    """The query moves with both, against the relation when heads are asked."""
    dsource.copy_(dquery)
    drelation.copy_(dquery)
    if side == "head":
        drelation.neg_()
