"""What a kernel can do; `bounds` are those of the entities' segments."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from medapps.model.kernels.segments import Bounds


class Kernel(Protocol):
    """Distances of queries to entities for every prefix, and the way back.

    `aligned` is each query against its own K entities, `pairs` each query against all N. What a
    query holds is agreed between the kernel and the rule that makes it.
    """

    @property
    def bounded(self) -> bool:
        """Distances are never negative, so exponentials of scores need no shift."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Any]:
        """Distances (n, B, K) of query (B, q) to its own entity (B, K, width), and what to keep."""

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Any, bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        """Gradients of query (B, q) and entity (B, K, width); overwrites grad and kept."""

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, q) to every entity (N, width), into out (n, B, N)."""

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

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): how far float32 `pairs` of query and entity may be off around distance (n, B)."""

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query (..., q) and entity (..., width)."""

    def total(self, terms: Tensor) -> Tensor:
        """The distance whose terms have this sum."""
