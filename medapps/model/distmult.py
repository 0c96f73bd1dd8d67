"""DistMult: the sum over coordinates of head * relation * tail; one real per coordinate.

score = margin + scale * sum_k h_k r_k t_k,   so D = -sum_k q_k t_k  with  q = h r
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.model.spec import ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor

REALS = (1, 1, 1)
KERNELS = {"dot": "product"}
RELATIONS = "plain"
DEFAULTS: dict[str, Any] = {"margin": 0.0}


def score(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin + scale * sum(head * relation * tail); arrays (k, d), result float32 (k,)."""
    return np.float32(spec.margin) + np.float32(spec.scale) * (head * relation * tail).sum(1)


def lengths(size: float, dim: int, norm: str) -> tuple[float, float]:
    """Entities and relations start alike."""
    return size, size


def query(source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
    """source * relation, whichever end is asked."""
    return out.copy_(source).mul_(relation)


def query_backward(
    dquery: Tensor,
    source: Tensor,
    relation: Tensor,
    side: str,
    dsource: Tensor,
    drelation: Tensor,
) -> None:
    """Each factor times the other's gradient."""
    dsource.copy_(dquery).mul_(relation)
    drelation.copy_(dquery).mul_(source)
