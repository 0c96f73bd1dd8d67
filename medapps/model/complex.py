"""ComplEx: the real part of sum_k h_k r_k conj(t_k) over complex coordinates.

    score = margin + scale * Re <h, r, conj(t)>,   so D = -(q . t)  with  q = h r  (tails asked)
                                                            or  q = t conj(r)      (heads asked)

A coordinate is one complex number: its real and imaginary part side by side, so that a prefix of a
vector is a smaller model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rotate import as_complex
from medapps.model.rule import BILINEAR, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class ComplEx(Rule):
    """The real part of the product of head, relation and conjugate tail."""

    REALS = (2, 2, 2)
    NORMS: ClassVar = {"dot": BILINEAR}
    DEFAULTS: ClassVar = {"margin": 0.0}

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin + scale * Re <head, relation, conj(tail)>; rows (k, 2d), result float32 (k,)."""
        (a, b), (c, s), (x, y) = ((z[:, 0::2], z[:, 1::2]) for z in (head, relation, tail))
        product = (a * c - b * s) * x + (a * s + b * c) * y
        return np.float32(spec.margin) + np.float32(spec.scale) * product.sum(1)

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """The source times the relation, or times its conjugate when heads are asked."""
        factor = as_complex(relation)
        as_complex(out.copy_(source)).mul_(factor if side == "tail" else factor.conj())
        return out

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """A factor's gradient is the query's times the conjugate of the other factor."""
        (source, relation), (dsource, drelation) = ends, grads
        s, r, dq = (as_complex(x) for x in (source, relation, dquery))
        as_complex(dsource.copy_(dquery)).mul_(r.conj() if side == "tail" else r)
        if side == "tail":
            as_complex(drelation.copy_(dquery)).mul_(s.conj())
        else:  # the relation stood conjugated
            as_complex(drelation.copy_(source)).mul_(dq.conj())
