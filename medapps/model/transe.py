"""TransE: the distance between head + relation and tail; one real per coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rule import EPSILON, EUCLIDEAN, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class TransE(Rule):
    """The distance between head + relation and tail."""

    REALS = (1, 1, 1)
    NORMS: ClassVar = {"l2": EUCLIDEAN}
    ROTATION_FREE = True

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin - scale * ||head + relation - tail||; arrays (k, d), result float32 (k,)."""
        square = np.square(head + relation - tail).sum(1)
        distance = np.sqrt(square + np.float32(EPSILON))
        return np.float32(spec.margin) - np.float32(spec.scale) * distance

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """head + relation when tails are asked, tail - relation when heads are."""
        return out.copy_(source).add_(relation, alpha=1 if side == "tail" else -1)

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """The query moves with both, against the relation when heads are asked."""
        for grad in grads:
            grad.copy_(dquery)
        if side == "head":
            grads[1].neg_()
