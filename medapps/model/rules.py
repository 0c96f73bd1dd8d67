"""The scorers by name. A new one is a file beside this one and a line in `RULES`.

Training and devices share the same words. A *source* is the given end of a triple and the *target*
the asked one (side "tail": head given; side "head": tail given). Source and relation make a
*query*, which meets a target in a distance D; the score is margin - scale * D.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from medapps.model import complex, distmult, pairre, rotate, simple, transe
from medapps.model.spec import ScoreSpec

if TYPE_CHECKING:
    from torch import Tensor


class Rule(Protocol):
    """What the file of a scorer holds; vectors keep the reals of a coordinate side by side, so that
    a prefix is a smaller model.
    """

    @property
    def REALS(self) -> tuple[int, int, int]:
        """Reals per coordinate of an entity, a relation and a query."""

    @property
    def KERNELS(self) -> Mapping[str, str]:
        """Norms that it knows, the usual one first, and how a query meets a target under each."""

    @property
    def RELATIONS(self) -> str:
        """What a relation's numbers are: "plain" (uniform at the start), "signs" (plain, but of one
        size at the start), or "angles", whose size says nothing.
        """

    @property
    def DEFAULTS(self) -> Mapping[str, Any]:
        """Settings of a training that suit this scorer where none are given."""

    def score(
        self, head: np.ndarray, relation: np.ndarray, tail: np.ndarray, spec: ScoreSpec, /
    ) -> np.ndarray:
        """float32 (k,): what a device computes for rows (k, reals)."""

    def lengths(self, size: float, dim: int, norm: str, /) -> tuple[float, float]:
        """Expected lengths of an entity's and a relation's start vector under a norm."""

    def query(self, source: Tensor, relation: Tensor, side: str, out: Tensor, /) -> Tensor:
        """(B, query reals) into `out`."""

    def query_backward(
        self,
        dquery: Tensor,
        source: Tensor,
        relation: Tensor,
        side: str,
        dsource: Tensor,
        drelation: Tensor,
        /,
    ) -> None:
        """Write the gradients of source and relation rows."""


RULES: dict[str, Rule] = {
    "transe": transe,
    "rotate": rotate,
    "pairre": pairre,
    "simple": simple,
    "distmult": distmult,
    "complex": complex,
}
