"""ComplEx: the real part of sum_k h_k r_k conj(t_k) over complex coordinates.

    score = margin + scale * Re <h, r, conj(t)>,   so D = -(q . t)  with  q = h r  (tails asked)
                                                            or  q = t conj(r)      (heads asked)

A coordinate is one complex number: its real and imaginary part side by side, so that a prefix of a
vector is a smaller model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from medapps.score.spec import ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor

REALS = (2, 2, 2)
KERNELS = {"dot": "product"}
ANGLES = False
DEFAULTS: dict[str, Any] = {"margin": 0.0}


def score(head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec) -> np.ndarray:
    """margin + scale * Re <head, relation, conj(tail)>; rows (k, 2d), result float32 (k,)."""
    (a, b), (c, s), (x, y) = (_parts(rows) for rows in (head, relation, tail))
    product = (a * c - b * s) * x + (a * s + b * c) * y
    return np.float32(spec.margin) + np.float32(spec.scale) * product.sum(1)


def lengths(size: float, dim: int) -> tuple[float, float]:
    """Entities and relations start alike."""
    return size, size


def query(source: Tensor, relation: Tensor, side: str, out: Tensor) -> Tensor:
    """The source times the relation, or times its conjugate when heads are asked."""
    return _multiply(source, relation, 1 if side == "tail" else -1, out)


def query_backward(
    dquery: Tensor,
    source: Tensor,
    relation: Tensor,
    side: str,
    dsource: Tensor,
    drelation: Tensor,
) -> None:
    """A factor's gradient is the query's times the conjugate of the other factor."""
    _multiply(dquery, relation, -1 if side == "tail" else 1, dsource)
    _multiply(dquery, source, -1, drelation)
    if side == "head":  # the relation stood conjugated
        _parts(drelation)[1].neg_()


def _multiply(left: Tensor, right: Tensor, sign: int, out: Tensor) -> Tensor:
    """left * right, the imaginary part of right multiplied by sign."""
    (a, b), (c, s) = _parts(left), _parts(right)
    x, y = _parts(out)
    x.copy_(a).mul_(c).addcmul_(b, s, value=-sign)
    y.copy_(b).mul_(c).addcmul_(a, s, value=sign)
    return out


def _parts(rows: Any) -> tuple[Any, Any]:
    """Real and imaginary parts (k, d) of rows (k, 2d), as views."""
    return rows[:, 0::2], rows[:, 1::2]
