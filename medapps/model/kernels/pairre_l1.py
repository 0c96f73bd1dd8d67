"""PairRE's published distance: sums of absolute values, every prefix normalised by its own length.

A query is (p | v | h) as in pairre_l2.py. For an entity t and prefix i, with a
and b one over the lengths of h and t there,

    D_i = sum_{k < d_i} |a_i p_k - v_k b_i t_k|

The lengths change from prefix to prefix, so that prefixes share no sums: the work is that of all
sizes one after another, 1.33 times that of the largest for 10, 40, 160 and 640.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medapps.model.kernels.pairre_l2 import apart, inverse_lengths, lengths_backward
from medapps.model.kernels.segments import blocks
from medapps.model.scorer import Bounds, Scorer

BLOCK = 2**18
"""Numbers of a block of pairs."""


class PairreL1(Scorer):
    """The sum of absolute differences of two stretched points that come from the unit sphere."""

    def aligned(
        self, query: Tensor, entity: Tensor, bounds: Bounds
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """D (n, B, K) of query (B, 3 width) and its own entity (B, K, width); both are kept."""
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds).unsqueeze(-1) for x in (h, entity))
        each = (
            (a[i] * p[..., :end] - v[..., :end] * entity[..., :end] * b[i]).abs().sum(-1)
            for i, end in enumerate(bounds[1:])
        )
        return torch.stack(list(each)), (query, entity)

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: tuple[Tensor, ...], bounds: Bounds
    ) -> tuple[Tensor, Tensor]:
        query, t = kept
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds) for x in (h, t))  # (n, B, 1), (n, B, K)
        sums = _Sums.like(p, v, t, a, b)
        for i, end in enumerate(bounds[1:]):
            x, y = a[i].unsqueeze(-1) * p[..., :end], b[i].unsqueeze(-1) * t[..., :end]
            gradient = (x - v[..., :end] * y).sign_().mul_(grad[i].unsqueeze(-1))
            along, across = gradient.sum(1, keepdim=True), -(gradient * y).sum(1, keepdim=True)
            sums.add(i, along, across, -gradient * v[..., :end], self._shares(i, bounds, p))
        dh = lengths_backward(sums.da, a, h, bounds, self.from_larger)
        sums.dt += lengths_backward(sums.db, b, t, bounds, self.from_larger)
        return torch.cat([sums.dp, sums.dv, dh], -1).squeeze(1), sums.dt

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """D of query (B, 3 width) and every entity (N, width), into out (n, B, N)."""
        p, v, h = query.split(bounds[-1], 1)
        a, b = (inverse_lengths(x, bounds).unsqueeze(-1) for x in (h, entity))
        sums = _compiled_sums if query.device.type == "cpu" else _block_sums
        for i, end in enumerate(bounds[1:]):
            sums(a[i] * p[:, :end], v[:, :end], b[i] * entity[:, :end], out[i])
        return out

    def pairs_backward(
        self,
        grad: Tensor,
        distance: Tensor,
        ends: tuple[Tensor, Tensor],
        bounds: Bounds,
        grads: tuple[Tensor, Tensor],
    ) -> None:
        (query, entity), (dquery, dentity) = ends, grads
        p, v, h = query.split(bounds[-1], 1)
        dp, dv, dh = dquery.split(bounds[-1], 1)
        a, b = (inverse_lengths(x, bounds) for x in (h, entity))  # (n, B), (n, N)
        sums = _Sums(p, entity, a, b, dp, dv, dentity, torch.empty_like(a), torch.empty_like(b))
        gradients = _compiled_gradients if query.device.type == "cpu" else _block_gradients
        for i, end in enumerate(bounds[1:]):
            x, y = a[i].unsqueeze(-1) * p[:, :end], b[i].unsqueeze(-1) * entity[:, :end]
            sums.add(i, *gradients(grad[i], x, v[:, :end], y), self._shares(i, bounds, p))
        dh += lengths_backward(sums.da, a, h, bounds, self.from_larger)
        dentity += lengths_backward(sums.db, b, entity, bounds, self.from_larger)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): sums of positive numbers lose little."""
        return 1e-5 * distance + 1e-6 * bounds[-1] ** 0.5

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds; leaving one out does not change the lengths."""
        return apart(query, entity, dim).abs_()

    def _shares(self, i: int, bounds: Bounds, like: Tensor) -> Tensor:
        """(width of prefix i,): what part of its gradient a coordinate takes."""
        widths = torch.tensor(bounds[: i + 2]).diff()
        powers = self.from_larger ** torch.arange(i, -1, -1, dtype=like.dtype)
        return powers.repeat_interleave(widths).to(like.device)


@dataclass
class _Sums:
    """Collects gradients over prefixes: of p, v and t, and of the inverse lengths a and b."""

    p: Tensor
    t: Tensor
    a: Tensor
    b: Tensor
    dp: Tensor
    dv: Tensor
    dt: Tensor
    da: Tensor
    db: Tensor

    @classmethod
    def like(cls, p: Tensor, v: Tensor, t: Tensor, a: Tensor, b: Tensor) -> _Sums:
        """Zeros to begin with."""
        zeros = (torch.zeros_like(x) for x in (p, v, t, a, b))
        return cls(p, t, a, b, *zeros)

    def add(self, i: int, dx: Tensor, dv: Tensor, dy: Tensor, shares: Tensor) -> None:
        """Those of x = a_i p, v and y = b_i t on prefix i."""
        end = dx.shape[-1]
        self.da[i] = (dx * self.p[..., :end]).sum(-1)
        self.db[i] = (dy * self.t[..., :end]).sum(-1)
        self.dp[..., :end].add_(dx.mul_(self.a[i].unsqueeze(-1)).mul_(shares))
        self.dv[..., :end].add_(dv.mul_(shares))
        self.dt[..., :end].add_(dy.mul_(self.b[i].unsqueeze(-1)).mul_(shares))


def _compiled_sums(x: Tensor, v: Tensor, y: Tensor, out: Tensor) -> None:
    """out (B, N): sums of |x - v y|."""
    from medapps.model.kernels import numba_loops  # Numba takes a while to load

    numba_loops.stretched_sums(*_arrays(x, v, y), out.numpy())


def _compiled_gradients(
    grad: Tensor, x: Tensor, v: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, v and y for grad (B, N)."""
    from medapps.model.kernels import numba_loops

    dx, dv, dy = numba_loops.stretched_gradients(grad.numpy(), *_arrays(x, v, y))
    return torch.from_numpy(dx), torch.from_numpy(dv), torch.from_numpy(dy)


def _block_sums(x: Tensor, v: Tensor, y: Tensor, out: Tensor) -> None:
    """`_compiled_sums` in blocks, on any device."""
    for rows in blocks(len(x), y.numel(), BLOCK):
        out[rows] = (x[rows, None] - v[rows, None] * y).abs_().sum(-1)


def _block_gradients(
    grad: Tensor, x: Tensor, v: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`_compiled_gradients` in blocks, on any device."""
    dx, dv, dy = torch.empty_like(x), torch.empty_like(x), torch.zeros_like(y)
    for rows in blocks(len(x), y.numel(), BLOCK):
        gradient = (x[rows, None] - v[rows, None] * y).sign_().mul_(grad[rows].unsqueeze(-1))
        dx[rows] = gradient.sum(1)
        dv[rows] = -(gradient * y).sum(1)
        dy -= (gradient * v[rows, None]).sum(0)
    return dx, dv, dy


def _arrays(x: Tensor, v: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return x.contiguous().numpy(), v.contiguous().numpy(), y.contiguous().numpy()
