"""Distances of prefixes between points: Euclidean, squared Euclidean, or sums of absolute values.

S_j = |q_j|^2 + |e_j|^2 - 2 q_j . e_j     (L2; one matrix product)
S_j = sum |q_j - e_j|                     (L1)
D_i = sqrt(S_1 + ... + S_i)  or, for L1 and squared L2,  D_i = S_1 + ... + S_i

A_j = sum_{i >= j} f^(i - j) (dL/dD_i) (dD_i/dS)     (f = from_larger, usually 1)
L2:  dq_j = a (rowsum(A_j) q_j - A_j e_j),  de_j = a (colsum(A_j) e_j - A_j^T q_j),  a = 2
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from medapps.model.kernels.matrix_products import products, products_backward
from medapps.model.kernels.segments import (
    Bounds,
    add_scaled_,
    chain_,
    chain_back_,
    divided_chain_back_,
    scale_segments_,
    segment_sums,
)
from medapps.model.spec import EPSILON

FLOOR = {torch.float32: 1e-4, torch.float64: EPSILON}
"""Least squared distance of the expanded form: below it the float32 cancellation is all there is.
"""


@dataclass(frozen=True)
class Distance:
    """How far a query lies from an entity."""

    norm: str = "l2"
    bf16: bool = False
    """Matrix products in bfloat16; sums, roots and gradients of the loss stay in float32."""
    from_larger: float = 1.0
    """Part of what moves a size that also moves the next smaller one inside it."""
    bounded: bool = True
    """Distances are never negative, so exponentials of scores need no shift."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Distances (n, B, K) of query (B, width) to its own entity (B, K, width), and what to
        keep.
        """
        kept = query.unsqueeze(1) - entity
        sums = segment_sums(kept.abs() if self.norm == "l1" else kept * kept, bounds)
        chain_(sums)
        return (sums.add_(EPSILON).sqrt_() if self.norm == "l2" else sums), kept

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Tensor, bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        """Gradients of query (B, width) and entity (B, K, width); overwrites grad and kept."""
        if self.norm == "l2":
            grad.div_(distance)
        elif self.norm == "l2sq":
            grad.mul_(2)
        chain_back_(grad, self.from_larger)
        kept = scale_segments_(kept.sign_() if self.norm == "l1" else kept, grad, bounds)
        dquery = kept.squeeze(1) if kept.shape[1] == 1 else kept.sum(1)
        return dquery, -kept

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, width) to every entity (N, width), into out (n, B, N)."""
        if self.norm == "l1":
            for j, (a, b) in enumerate(pairwise(bounds)):
                out[j] = torch.cdist(query[:, a:b], entity[:, a:b], p=1.0)
            return chain_(out)
        lengths = segment_sums(entity * entity, bounds)  # (n, N)
        products(query, entity, bounds, out, alpha=-2.0, add=lengths, bf16=self.bf16)
        own = chain_(segment_sums(query * query, bounds))  # (n, B)
        out += (own.add_(EPSILON) if self.norm == "l2" else own).unsqueeze(-1)
        out.clamp_min_(FLOOR[out.dtype])
        return out.sqrt_() if self.norm == "l2" else out

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
        if self.norm == "l1":
            chain_back_(grad, self.from_larger)
            self._pairs_backward_l1(grad, query, entity, bounds, dquery, dentity)
            return
        if self.norm == "l2":
            # a = 2 cancels with the 1/2 of the root
            divided_chain_back_(grad, distance, self.from_larger)
        else:
            chain_back_(grad.mul_(2), self.from_larger)
        rows, columns = grad.sum(-1), grad.sum(1)  # (n, B), (n, N)
        add_scaled_(dquery, query, rows, bounds)
        add_scaled_(dentity, entity, columns, bounds)
        ends = (query, entity, bounds, dquery, dentity)
        products_backward(grad, *ends, alpha=-1.0, bf16=self.bf16)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): how far float32 `pairs` of query and entity may be off around distance (n, B)."""
        if self.norm == "l1":
            return 1e-5 * distance + 1e-6
        lengths = [
            chain_(segment_sums(x * x, bounds)) for x in (query, entity)
        ]  # (n, B), (n, N) squared lengths of the prefixes
        off = 4e-6 * (lengths[0] + lengths[1].amax(-1, keepdim=True)) + 1e-9
        if self.norm == "l2sq":
            return off + torch.where(distance < 2 * FLOOR[torch.float32], FLOOR[torch.float32], 0.0)
        off = off + torch.where(
            distance.square() < 2 * FLOOR[torch.float32], FLOOR[torch.float32], 0.0
        )
        # D^2 +- off is D +- at most off / D, and near zero never more than sqrt(off)
        return torch.minimum(off / distance.clamp_min(1e-9), off.sqrt())

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query and entity (..., width)."""
        difference = query - entity
        each = difference.abs_() if self.norm == "l1" else difference.square_()
        return each.unflatten(-1, (dim, -1)).sum(-1)

    def total(self, terms: Tensor) -> Tensor:
        """The distance whose terms have this sum."""
        terms = terms.clamp_min(0.0)
        return terms.add_(EPSILON).sqrt_() if self.norm == "l2" else terms

    @staticmethod
    def _pairs_backward_l1(
        grad: Tensor,
        query: Tensor,
        entity: Tensor,
        bounds: Bounds,
        dquery: Tensor,
        dentity: Tensor,
    ) -> None:
        back = torch.ops.aten._cdist_backward
        for j, (a, b) in enumerate(pairwise(bounds)):
            q, e, g = query[:, a:b].contiguous(), entity[:, a:b].contiguous(), grad[j].contiguous()
            dquery[:, a:b].add_(back(g, q, e, 1.0, g))  # p = 1 ignores the distances
            g = g.T.contiguous()
            dentity[:, a:b].add_(back(g, e, q, 1.0, g))
