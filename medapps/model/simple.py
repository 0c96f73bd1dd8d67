"""SimplE: an entity has one vector as a head and one as a tail, a relation has one and an inverse.

    score = margin + scale / 2 * (<h_head, r, t_tail> + <t_head, r_inverse, h_tail>)

A coordinate keeps both roles side by side: (as head, as tail) of an entity, (r, inverse) of a
relation. The query of head h is (h_tail r_inverse, h_head r) / 2, to be multiplied by (t_head,
t_tail); that of tail t the same with r and its inverse exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rule import BILINEAR, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class SimplE(Rule):
    """Half the sum of two products, for the triple and its inverse."""

    REALS = (2, 2, 2)
    NORMS: ClassVar = {"dot": BILINEAR}
    DEFAULTS: ClassVar = {"margin": 0.0}

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin + scale / 2 * both products; rows (k, 2d), result float32 (k,)."""
        there = head[:, 0::2] * relation[:, 0::2] * tail[:, 1::2]
        back = tail[:, 0::2] * relation[:, 1::2] * head[:, 1::2]
        return np.float32(spec.margin) + np.float32(spec.scale / 2) * (there + back).sum(1)

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """(source as tail * inverse, source as head * relation) / 2 when tails are asked."""
        there, back = (0, 1) if side == "tail" else (1, 0)
        out[:, 0::2] = source[:, 1::2] * relation[:, back::2]
        out[:, 1::2] = source[:, 0::2] * relation[:, there::2]
        return out.mul_(0.5)

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """Each factor times the other's gradient, roles exchanged."""
        (source, relation), (dsource, drelation) = ends, grads
        there, back = (0, 1) if side == "tail" else (1, 0)
        dsource[:, 1::2] = dquery[:, 0::2] * relation[:, back::2]
        dsource[:, 0::2] = dquery[:, 1::2] * relation[:, there::2]
        drelation[:, back::2] = dquery[:, 0::2] * source[:, 1::2]
        drelation[:, there::2] = dquery[:, 1::2] * source[:, 0::2]
        dsource.mul_(0.5)
        drelation.mul_(0.5)
