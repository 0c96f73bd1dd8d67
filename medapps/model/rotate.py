"""RotatE: the distance between the head, turned by the relation's angles, and the tail.

    D = || h e^(i r) - t ||       h, t complex, r angles in radians

A coordinate is one complex number: real and imaginary part of an entity side by side, one angle of
a relation. Norm "moduli" is the published sum of absolute values of the complex differences.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from medapps.model.rule import EPSILON, EUCLIDEAN, MODULUS, Ends, Rows, Rule, ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class RotatE(Rule):
    """The distance between the head, turned by the relation's angles, and the tail."""

    REALS = (2, 1, 2)
    NORMS: ClassVar = {"l2": EUCLIDEAN, "moduli": MODULUS}
    RELATIONS = "angles"
    DEFAULTS: ClassVar = {"rate_power": 0.25}

    def score(self, head: Rows, relation: Rows, tail: Rows, spec: ScoreSpec) -> np.ndarray:
        """margin - scale * ||head turned by relation - tail||; rows (k, 2d), (k, d), (k, 2d)."""
        c, s = np.cos(relation), np.sin(relation)
        x, y = head[:, 0::2], head[:, 1::2]
        square = np.square(x * c - y * s - tail[:, 0::2]) + np.square(x * s + y * c - tail[:, 1::2])
        if spec.norm == "moduli":
            distance = np.sqrt(square + np.float32(EPSILON)).sum(1)
        else:
            distance = np.sqrt(square.sum(1) + np.float32(EPSILON))
        return np.float32(spec.margin) - np.float32(spec.scale) * distance

    def lengths(self, size: float, dim: int, norm: str) -> tuple[float, float]:
        """Angles start anywhere on the circle: uniform between -pi and pi."""
        return size, math.pi * math.sqrt(dim / 3)

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
        """The head turned forwards when tails are asked, the tail backwards when heads are."""
        _turns(relation, side == "head", out).mul_(as_complex(source))
        return out

    def query_backward(self, dquery: Tensor, ends: Ends, side: str, grads: Ends) -> None:
        """The source's gradient is turned back; an angle moves the query along its circle."""
        (source, relation), (dsource, drelation) = ends, grads
        back = _turns(relation, side == "tail", dsource).mul_(as_complex(dquery))
        drelation.copy_((back * as_complex(source).conj()).imag)
        if side == "head":
            drelation.neg_()


def as_complex(rows: Tensor) -> Tensor:
    """Rows (k, 2d) as complex numbers (k, d), a view."""
    return rows.view(rows.dtype.to_complex())


def _turns(relation: Tensor, backwards: bool, out: Tensor) -> Tensor:
    """e^(i r), or e^(-i r) backwards, as complex numbers in the memory of `out`."""
    out[:, 0::2] = relation.cos()
    sine = relation.sin()
    out[:, 1::2] = sine.neg_() if backwards else sine
    return as_complex(out)
