"""SimplE as OpenKE trains it: one vector per entity, so that every relation is symmetric.

    score = margin + scale / 2 * (<h, r, t> + <h, r_inverse, t>)

OpenKE ranks with <h, r, t> alone; here the trained score ranks as well. A coordinate of a relation
is (r, inverse).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.model.spec import ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor

REALS = (1, 2, 1)
KERNELS = {"dot": "product"}
RELATIONS = "plain"
DEFAULTS: dict[str, Any] = {"margin": 0.0}


def score(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin + scale / 2 * sum(head * (r + inverse) * tail); rows (k, d), (k, 2d), (k, d)."""
    both = relation[:, 0::2] + relation[:, 1::2]
    return np.float32(spec.margin) + np.float32(spec.scale / 2) * (head * both * tail).sum(1)


def lengths(size: float, dim: int, norm: str) -> tuple[float, float]:
    """Entities and relations start alike."""
    return size, size


def query(source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
    """source * (r + inverse) / 2, whichever end is asked."""
    out.copy_(relation[:, 0::2]).add_(relation[:, 1::2])
    return out.mul_(source).mul_(0.5)


def query_backward(
    dquery: Tensor,
    source: Tensor,
    relation: Tensor,
    side: str,
    dsource: Tensor,
    drelation: Tensor,
) -> None:
    """Each factor times the other's gradient."""
    half = dquery * 0.5
    dsource.copy_(relation[:, 0::2]).add_(relation[:, 1::2]).mul_(half)
    drelation[:, 0::2] = half * source
    drelation[:, 1::2] = drelation[:, 0::2]
