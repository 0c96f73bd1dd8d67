"""Distances and gradients of a scorer that is one differentiable function, by torch.autograd.

Every prefix is scored by itself, in float64 where scores are only ranked, and scored again on the
way to its gradient: right for every rule, and the truth for a kernel that is written by hand later.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from medapps.model.rule import AutogradRule, Bounds, Ends, Scorer


class Autograd(Scorer):
    """`AutogradRule.distance` of every prefix."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Ends]:
        distances = self._distances(query.unsqueeze(1), entity, bounds)
        return torch.stack(list(distances)), (query, entity)

    def aligned_backward(self, grad: Tensor, distance: Tensor, kept: Ends, bounds: Bounds) -> Ends:
        return self._gradients(grad, kept[0].unsqueeze(1), kept[1], bounds)

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        ends = query.double().unsqueeze(1), entity.double().unsqueeze(0)
        for i, distance in enumerate(self._distances(*ends, bounds)):
            out[i] = distance
        return out

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        query, entity = ends
        dquery, dentity = self._gradients(grad, query.unsqueeze(1), entity.unsqueeze(0), bounds)
        grads[0].add_(dquery)
        grads[1].add_(dentity.squeeze(0))

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): one rounding of a float64 result."""
        return 1e-6 * distance.abs() + 1e-9

    def _distances(self, query: Tensor, entity: Tensor, bounds: Bounds) -> Iterator[Tensor]:
        """D (B, K) of each prefix, for query (B, 1, q) and entity (B or 1, K, width)."""
        assert isinstance(self.rule, AutogradRule)
        width, of_relation = bounds[-1], self.rule.REALS[1]
        end = width // self.rule.REALS[0] * of_relation
        source, relation, tails = query.split([width, end, query.shape[-1] - width - end], -1)
        asks_tail = tails[..., :1] > 0
        for stop in bounds[1:]:
            given, asked = source[..., :stop], entity[..., :stop]
            head, tail = torch.where(asks_tail, given, asked), torch.where(asks_tail, asked, given)
            cut = relation[..., : stop // self.rule.REALS[0] * of_relation]
            yield self.rule.distance(head, cut, tail)

    def _gradients(
        self, grad: Tensor, query: Tensor, entity: Tensor, bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        """Gradients of query (B, q) and entity for grad (n, B, K)."""
        dquery, dentity = torch.zeros_like(query), torch.zeros_like(entity)
        with torch.enable_grad():
            ends = query.detach().requires_grad_(), entity.detach().requires_grad_()
            for i, distance in enumerate(self._distances(*ends, bounds)):
                dq, de = torch.autograd.grad(distance, ends, grad[i], allow_unused=True)
                share = self.shares(i, bounds, entity)
                share = torch.nn.functional.pad(share, (0, bounds[-1] - len(share)))
                if dq is not None:
                    dquery += dq * self._query_shares(share)
                if de is not None:
                    dentity += de * share
        return dquery.squeeze(1), dentity

    def _query_shares(self, shares: Tensor) -> Tensor:
        """The same for the columns of a query: source, relation, side."""
        of_entity, of_relation, _ = self.rule.REALS
        each = shares[::of_entity]
        return torch.cat([shares, each.repeat_interleave(of_relation), each])
