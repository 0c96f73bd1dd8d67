"""PairRE: the distance of head and tail, each on the unit sphere and stretched by its own vector.

    D = || h / |h| * r_head - t / |t| * r_tail ||

A coordinate of a relation is (r_head, r_tail) side by side. Every size divides by the length of its
own prefix, so each is a true PairRE. The query is three vectors, one after another: the source
times its vector, the other end's vector, and the source itself for its lengths. Norm "l1" is the
published sum of absolute values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rule import EPSILON, PAIRRE_L1, PAIRRE_L2, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class PairRE(Rule):
    """The distance of head and tail on the unit sphere, each stretched by the relation."""

    REALS = (1, 2, 3)
    NORMS: ClassVar = {"l2": PAIRRE_L2, "l1": PAIRRE_L1}
    RELATIONS = "signs"

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin - scale * ||unit head * r_head - unit tail * r_tail||; relation rows (k, 2d)."""
        h, t = (
            x / np.sqrt(np.square(x).sum(1) + np.float32(EPSILON))[:, None] for x in (head, tail)
        )
        difference = h * relation[:, 0::2] - t * relation[:, 1::2]
        if spec.norm == "l1":
            distance = np.abs(difference).sum(1)
        else:
            distance = np.sqrt(np.square(difference).sum(1) + np.float32(EPSILON))
        return np.float32(spec.margin) - np.float32(spec.scale) * distance

    def lengths(self, size: float, dim: int, norm: str) -> tuple[float, float]:
        """Relations start as mirrors, which are symmetric: entries of plus or minus two, or of what
        gives sums of absolute values the same distances as in ten dimensions.
        """
        entry = 2.0 * (10 / dim) ** 0.5 if norm == "l1" else 2.0
        return size, entry * (2 * dim) ** 0.5

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """(source * its vector | the other end's vector | source)."""
        own, other = (0, 1) if side == "tail" else (1, 0)
        width = source.shape[1]
        out[:, :width] = source * relation[:, own::2]
        out[:, width : 2 * width] = relation[:, other::2]
        out[:, 2 * width :] = source
        return out

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """The three parts of the query, each to where it came from."""
        (source, relation), (dsource, drelation) = ends, grads
        own, other = (0, 1) if side == "tail" else (1, 0)
        width = source.shape[1]
        stretched, apart, plain = dquery.split(width, 1)
        dsource.copy_(plain).addcmul_(stretched, relation[:, own::2])
        drelation[:, own::2] = stretched * source
        drelation[:, other::2] = apart
