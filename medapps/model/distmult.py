"""DistMult: the sum over coordinates of head * relation * tail; one real per coordinate.

score = margin + scale * sum_k h_k r_k t_k,   so D = -sum_k q_k t_k  with  q = h r
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rule import BILINEAR, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class DistMult(Rule):
    """The sum over coordinates of head * relation * tail."""

    REALS = (1, 1, 1)
    NORMS: ClassVar = {"dot": BILINEAR}
    DEFAULTS: ClassVar = {"margin": 0.0}

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin + scale * sum(head * relation * tail); arrays (k, d), result float32 (k,)."""
        return np.float32(spec.margin) + np.float32(spec.scale) * (head * relation * tail).sum(1)

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """source * relation, whichever end is asked."""
        return out.copy_(source).mul_(relation)

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """Each factor times the other's gradient."""
        (source, relation), (dsource, drelation) = ends, grads
        dsource.copy_(dquery).mul_(relation)
        drelation.copy_(dquery).mul_(source)
