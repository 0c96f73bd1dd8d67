"""A scorer as the training engine sees it: a rule that makes queries, a kernel that measures them.

query = rule(source, relation, side)      one vector per positive
D_i   = kernel(query, entity)             for every prefix i in one pass
s_i   = m_i - c_i D_i                     (margin m_i and scale c_i belong to the loss)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medapps.model.kernels.base import Kernel
from medapps.model.kernels.bilinear import Product
from medapps.model.kernels.euclidean import Distance
from medapps.model.kernels.modulus import Moduli
from medapps.model.kernels.pairre_l1 import PairedSums
from medapps.model.kernels.pairre_l2 import Paired
from medapps.model.kernels.segments import Bounds, scale_segments_, segment_sums
from medapps.model.rules import RULES, Rule

__all__ = ["Bounds", "Scorer", "bounds_of", "make_scorer", "scale_segments_", "segment_sums"]

KERNELS: dict[str, Callable[..., Kernel]] = {
    "distance": Distance,
    "moduli": Moduli,
    "paired": Paired,
    "paired_sums": PairedSums,
    "product": Product,
}


@dataclass(frozen=True)
class Scorer:
    """Makes queries by its rule and measures them by its kernel."""

    name: str
    rule: Rule
    kernel: Kernel

    @property
    def bounded(self) -> bool:
        """Scores never exceed the margin, so their exponentials need no shift."""
        return self.kernel.bounded

    def widths(self, dim: int) -> tuple[int, int, int]:
        """Reals per entity, per relation and per query at `dim`."""
        entity, relation, query = self.rule.REALS
        return dim * entity, dim * relation, dim * query

    def query(
        self, source: Tensor, relation: Tensor, side: str, out: Tensor | None = None
    ) -> Tensor:
        """(B, query reals) of source (B, width) and relation rows, into `out` if given."""
        if out is None:
            entity, _, query = self.rule.REALS
            out = source.new_empty(len(source), source.shape[1] // entity * query)
        return self.rule.query(source, relation, side, out)

    def query_backward(
        self,
        dquery: Tensor,
        source: Tensor,
        relation: Tensor,
        side: str,
        dsource: Tensor,
        drelation: Tensor,
    ) -> None:
        """Write the gradients of source and relation rows."""
        self.rule.query_backward(dquery, source, relation, side, dsource, drelation)

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Any]:
        """Distances (n, B, K) of query (B, q) to its own entity (B, K, width), and what to keep."""
        return self.kernel.aligned(query, entity, bounds)

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Any, bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        """Gradients of query (B, q) and entity (B, K, width); overwrites grad and kept."""
        return self.kernel.aligned_backward(grad, distance, kept, bounds)

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, q) to every entity (N, width), into out (n, B, N)."""
        return self.kernel.pairs(query, entity, bounds, out)

    def pairs_backward(
        self,
        grad: Tensor,
        distance: Tensor,
        query: Tensor,
        entity: Tensor,
        bounds: Bounds,
        dquery: Tensor,
        dentity: Tensor,
    ) -> None:
        """Add the gradients of query and entity; grad (n, B, N) is overwritten."""
        self.kernel.pairs_backward(grad, distance, query, entity, bounds, dquery, dentity)


def bounds_of(scorer: Scorer, dims: tuple[int, ...]) -> Bounds:
    """Segment bounds in reals of an entity."""
    return (0, *(scorer.widths(dim)[0] for dim in dims))


def make_scorer(name: str, norm: str | None = None, *, from_larger: float = 1.0) -> Scorer:
    """The scorer of that name, with its usual norm if none is given."""
    rule = RULES[name]
    norm = norm or next(iter(rule.KERNELS))
    kernel = KERNELS[rule.KERNELS[norm]]
    return Scorer(name, rule, kernel(norm=norm, from_larger=from_larger))
