"""Euclidean distances of prefixes between points.

S_j = |q_j|^2 + |e_j|^2 - 2 q_j . e_j     (one matrix product)
D_i = sqrt(S_1 + ... + S_i)

A_j = sum_{i >= j} f^(i - j) (dL/dD_i) (dD_i/dS)     (f = from_larger, usually 1)
dq_j = a (rowsum(A_j) q_j - A_j e_j),  de_j = a (colsum(A_j) e_j - A_j^T q_j),  a = 2
"""

from __future__ import annotations

import torch
from torch import Tensor

from medapps.model.kernels.segments import (
    add_scaled_,
    chain_,
    chain_back_,
    divided_chain_back_,
    products,
    products_backward,
    scale_segments_,
    segment_sums,
)
from medapps.model.rule import EPSILON, Bounds, Ends, Scorer

FLOOR = {torch.float32: 1e-4, torch.float64: EPSILON}
"""Least squared distance of the expanded form: below it the float32 cancellation is all there is.
"""


class Euclidean(Scorer):
    """How far a query lies from an entity."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Distances (n, B, K) of query (B, width) to its own entity (B, K, width), and what to
        keep.
        """
        kept = query.unsqueeze(1) - entity
        return chain_(segment_sums(kept * kept, bounds)).add_(EPSILON).sqrt_(), kept

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Tensor, bounds: Bounds
    ) -> Ends:
        chain_back_(grad.div_(distance), self.from_larger)
        kept = scale_segments_(kept, grad, bounds)
        dquery = kept.squeeze(1) if kept.shape[1] == 1 else kept.sum(1)
        return dquery, -kept

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """Distances of query (B, width) to every entity (N, width), into out (n, B, N)."""
        lengths = segment_sums(entity * entity, bounds)  # (n, N)
        products(query, entity, bounds, out, alpha=-2.0, add=lengths)
        own = chain_(segment_sums(query * query, bounds))  # (n, B)
        out += own.add_(EPSILON).unsqueeze(-1)
        return out.clamp_min_(FLOOR[out.dtype]).sqrt_()

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        (query, entity), (dquery, dentity) = ends, grads
        divided_chain_back_(grad, distance, self.from_larger)  # a = 2 cancels the 1/2 of the root
        rows, columns = grad.sum(-1), grad.sum(1)  # (n, B), (n, N)
        add_scaled_(dquery, query, rows, bounds)
        add_scaled_(dentity, entity, columns, bounds)
        products_backward(grad, *ends, bounds, grads, alpha=-1.0)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): how far float32 `pairs` of query and entity may be off around distance (n, B)."""
        lengths = [
            chain_(segment_sums(x * x, bounds)) for x in (query, entity)
        ]  # (n, B), (n, N) squared lengths of the prefixes
        off = 4e-6 * (lengths[0] + lengths[1].amax(-1, keepdim=True)) + 1e-9
        off = off + torch.where(
            distance.square() < 2 * FLOOR[torch.float32], FLOOR[torch.float32], 0.0
        )
        # D^2 +- off is D +- at most off / D, and near zero never more than sqrt(off)
        return torch.minimum(off / distance.clamp_min(1e-9), off.sqrt())

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query and entity (..., width)."""
        return (query - entity).square_().unflatten(-1, (dim, -1)).sum(-1)

    def total(self, terms: Tensor) -> Tensor:
        return terms.clamp_min(0.0).add_(EPSILON).sqrt_()
