"""Bilinear scores: D_i = -(q . e) over the first i segments, so that likeness is nearness."""

from __future__ import annotations

import torch
from torch import Tensor

from medapps.model.kernels.segments import (
    chain_,
    chain_back_,
    products,
    products_backward,
    scale_segments_,
    segment_sums,
)
from medapps.model.rule import Bounds, Ends, Scorer


class Bilinear(Scorer):
    """Minus the inner product of a query and an entity."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Ends]:
        """D (n, B, K) of query (B, width) and its own entity (B, K, width); both are kept."""
        return chain_(segment_sums(query.unsqueeze(1) * entity, bounds).neg_()), (query, entity)

    def aligned_backward(self, grad: Tensor, distance: Tensor, kept: Ends, bounds: Bounds) -> Ends:
        query, entity = kept
        chain_back_(grad.neg_(), self.from_larger)
        dentity = query.unsqueeze(1).expand_as(entity).clone(memory_format=torch.contiguous_format)
        scaled = entity.clone(memory_format=torch.contiguous_format)
        scale_segments_(dentity, grad, bounds)
        return scale_segments_(scaled, grad, bounds).sum(1), dentity

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """D of query (B, width) and every entity (N, width), into out (n, B, N)."""
        return products(query, entity, bounds, out, alpha=-1.0)

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        chain_back_(grad, self.from_larger)
        products_backward(grad, *ends, bounds, grads, alpha=-1.0)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): rounding of a float32 product grows with both lengths."""
        lengths = [chain_(segment_sums(x * x, bounds)).sqrt_() for x in (query, entity)]
        return 4e-6 * lengths[0] * lengths[1].amax(-1, keepdim=True) + 1e-9

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query and entity (..., width)."""
        return (query * entity).unflatten(-1, (dim, -1)).sum(-1).neg_()
