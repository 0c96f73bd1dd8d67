"""PairRE's distance with every prefix normalised by its own length, exact in one pass.

A query is (p | v | h): p = source times its vector, v = the other end's vector, h = source. For an
entity t and prefix i, with H, T, A, B, C sums over the prefix,

    a = 1/sqrt(H),  b = 1/sqrt(T)       H = sum h^2,  T = sum t^2
    S = a^2 A + b^2 B - 2 a b C         A = sum p^2,  B = sum v^2 t^2,  C = sum p v t
    D = sqrt(S)

B and C are matrix products. With G = dL/dS and sums over the pairs of a row or a column:

    dA = a^2 sum G      da = 2 (a A sum G - sum G b C)      db = 2/b sum G (S - a^2 A + a b C)
    dB = b^2 G          dC = -2 a b G                       dH = -a^3 da / 2,  dT = -b^3 db / 2

The published distance is D = sum |a p - v b t|. The lengths change from prefix to prefix, so that
prefixes share no sums: the work is that of all sizes one after another, 1.33 times that of the
largest for 10, 40, 160 and 640.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from medapps.model.kernels.euclidean import FLOOR
from medapps.model.kernels.segments import (
    blocks,
    chain_,
    chain_back_,
    loops,
    products,
    products_backward,
    scale_segments_,
    segment_sums,
)
from medapps.model.rule import EPSILON, Bounds, Ends, Scorer

BLOCK = 2**18
"""Numbers of a block of pairs."""


class PairreL2(Scorer):
    """The distance of two stretched points that both come from the unit sphere."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Ends]:
        """D (n, B, K) of query (B, 3 width) and its own entity (B, K, width); both are kept."""
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds) for x in (h, entity))  # (n, B, 1), (n, B, K)
        stretched = v * entity
        square = _prefix_sums(stretched * stretched, bounds).mul_(b).mul_(b)
        cross = _prefix_sums(stretched.mul_(p), bounds).mul_(a).mul_(b)
        square.sub_(cross, alpha=2).add_(_prefix_sums(p * p, bounds) * a * a)
        return self.total(square), (query, entity)

    def aligned_backward(self, grad: Tensor, distance: Tensor, kept: Ends, bounds: Bounds) -> Ends:
        (query, t), share = kept, self.from_larger
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds) for x in (h, t))
        own = _prefix_sums(p * p, bounds)  # A (n, B, 1)
        cross = _prefix_sums(v * t * p, bounds)  # C (n, B, K)
        g = grad.div_(distance).mul_(0.5)  # dL/dS
        square = distance * distance
        da = (own * a * g - g * b * cross).sum(2, keepdim=True).mul_(2)
        db = (square - a * a * own + a * b * cross).mul_(g).mul_(2).div_(b)
        dv, dt = (
            lengths_backward(gradient, inverse, x, bounds, share)
            for gradient, inverse, x in ((da, a, h), (db, b, t))
        )
        dh, dsum = dv.sum(1), (a * a * g).sum(2, keepdim=True)
        dp = scale_segments_(2 * p, chain_back_(dsum, share), bounds).sum(1)
        apart = scale_segments_(2 * v * t, chain_back_(b * b * g, share), bounds)  # dB by v t
        across = chain_back_((-2) * a * b * g, share)
        dt.addcmul_(apart, v.expand_as(t))
        dv = (apart * t).sum(1)
        along = scale_segments_(t.clone(memory_format=torch.contiguous_format), across, bounds)
        dp += (along * v).sum(1)
        dv += (along * p).sum(1)
        dt += scale_segments_((p * v).expand_as(t).contiguous(), across, bounds)
        return torch.cat([dp, dv, dh], 1), dt

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """D of query (B, 3 width) and every entity (N, width), into out (n, B, N)."""
        p, v, h = query.split(bounds[-1], 1)
        a, b = (inverse_lengths(x, bounds) for x in (h, entity))  # (n, B), (n, N)
        b = b.unsqueeze(1)
        products(v * v, entity * entity, bounds, out).mul_(b)
        cross = torch.empty_like(out)
        products(p * v, entity, bounds, cross, alpha=-2.0)
        out.addcmul_(cross, a.unsqueeze(-1)).mul_(b)
        out += (_prefix_sums(p * p, bounds) * a * a).unsqueeze(-1)
        return out.clamp_min_(FLOOR[out.dtype]).sqrt_()

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        (query, entity), (dquery, dentity) = ends, grads
        width, share = bounds[-1], self.from_larger
        p, v, h = query.split(width, 1)
        dp, dv, dh = dquery.split(width, 1)
        a, b = (inverse_lengths(x, bounds) for x in (h, entity))  # (n, B), (n, N)
        own = _prefix_sums(p * p, bounds)  # A (n, B)
        u, squares = p * v, (v * v, entity * entity)
        cross = products(u, entity, bounds, torch.empty_like(grad))  # C
        column = torch.einsum("nbk,nbk->nk", grad, distance).mul_(0.5)  # sum over B of G S
        g = grad.div_(distance).mul_(0.5)  # dL/dS
        column -= torch.bmm((a * a * own).unsqueeze(1), g)[:, 0]
        cross.mul_(g)  # G C
        column += torch.bmm(a.unsqueeze(1), cross)[:, 0] * b
        row = g.sum(-1)
        da = 2 * (a * own * row - torch.bmm(cross, b.unsqueeze(-1))[..., 0])
        dh += lengths_backward(da, a, h, bounds, share)
        dentity += lengths_backward(column.mul_(2).div_(b), b, entity, bounds, share)
        dp += scale_segments_(2 * p, chain_back_(a * a * row, share), bounds)
        torch.mul(g, b.unsqueeze(1), out=cross)
        g.copy_(cross).mul_(a.unsqueeze(-1))  # a b G
        du = torch.zeros_like(u)
        dsquares = torch.zeros_like(squares[0]), torch.zeros_like(squares[1])
        chain_back_(g, share)
        products_backward(g, u, entity, bounds, (du, dentity), alpha=-2.0)
        chain_back_(cross.mul_(b.unsqueeze(1)), share)  # b^2 G
        products_backward(cross, *squares, bounds, dsquares)
        dp.addcmul_(du, v)
        dv.addcmul_(du, p).addcmul_(dsquares[0], v, value=2)
        dentity.addcmul_(dsquares[1], entity, value=2)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): the three parts of S are at most the largest stretch squared."""
        p, v, h = query.split(bounds[-1], 1)
        own = _prefix_sums(p * p, bounds) * inverse_lengths(h, bounds).square_()
        off = 8e-6 * (own + v.square().amax(-1)) + 1e-9
        floor = FLOOR[torch.float32]
        off = off + torch.where(distance.square() < 2 * floor, floor, 0.0)
        return torch.minimum(off / distance.clamp_min(1e-9), off.sqrt())

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds; leaving one out does not change the lengths."""
        return apart(query, entity, dim).square_()

    def total(self, terms: Tensor) -> Tensor:
        return terms.clamp_min(0.0).add_(EPSILON).sqrt_()


def _prefix_sums(x: Tensor, bounds: Bounds) -> Tensor:
    """(n, ...): sums of x (..., width) over each prefix."""
    return chain_(segment_sums(x, bounds))


def apart(query: Tensor, entity: Tensor, dim: int) -> Tensor:
    """(..., dim): the difference of both points for query (..., 3 dim) and entity (..., dim)."""
    p, v, h = query.split(dim, -1)
    a, b = ((x.square().sum(-1, keepdim=True) + EPSILON).rsqrt() for x in (h, entity))
    return p * a - v * entity * b


def inverse_lengths(x: Tensor, bounds: Bounds) -> Tensor:
    """(n, ...): one over the length of each prefix of x (..., width)."""
    return _prefix_sums(x * x, bounds).add_(EPSILON).rsqrt_()


def lengths_backward(
    grad: Tensor, inverse: Tensor, x: Tensor, bounds: Bounds, share: float
) -> Tensor:
    """Gradient of x (..., width) from that of its prefixes' inverse lengths (n, ...)."""
    factor = chain_back_(grad * inverse * inverse * inverse, share)
    return scale_segments_(x.neg().contiguous(), factor, bounds)


class PairreL1(Scorer):
    """The sum of absolute differences of two stretched points that come from the unit sphere."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Ends]:
        """D (n, B, K) of query (B, 3 width) and its own entity (B, K, width); both are kept."""
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds).unsqueeze(-1) for x in (h, entity))
        each = (
            (a[i] * p[..., :end] - v[..., :end] * entity[..., :end] * b[i]).abs().sum(-1)
            for i, end in enumerate(bounds[1:])
        )
        return torch.stack(list(each)), (query, entity)

    def aligned_backward(self, grad: Tensor, distance: Tensor, kept: Ends, bounds: Bounds) -> Ends:
        query, t = kept
        p, v, h = (x.unsqueeze(1) for x in query.split(bounds[-1], 1))
        a, b = (inverse_lengths(x, bounds) for x in (h, t))  # (n, B, 1), (n, B, K)
        sums = _Sums(p, t, a, b, *(torch.zeros_like(x) for x in (p, v, t, a, b)))
        for i, end in enumerate(bounds[1:]):
            x, y = a[i].unsqueeze(-1) * p[..., :end], b[i].unsqueeze(-1) * t[..., :end]
            gradient = (x - v[..., :end] * y).sign_().mul_(grad[i].unsqueeze(-1))
            along, across = gradient.sum(1, keepdim=True), -(gradient * y).sum(1, keepdim=True)
            sums.add(i, along, across, -gradient * v[..., :end], self.shares(i, bounds, p))
        dh = lengths_backward(sums.da, a, h, bounds, self.from_larger)
        sums.dt += lengths_backward(sums.db, b, t, bounds, self.from_larger)
        return torch.cat([sums.dp, sums.dv, dh], -1).squeeze(1), sums.dt

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """D of query (B, 3 width) and every entity (N, width), into out (n, B, N)."""
        p, v, h = query.split(bounds[-1], 1)
        a, b = (inverse_lengths(x, bounds).unsqueeze(-1) for x in (h, entity))
        sums = loops().stretched_sums if query.device.type == "cpu" else _block_sums
        for i, end in enumerate(bounds[1:]):
            sums(a[i] * p[:, :end], v[:, :end], b[i] * entity[:, :end], out[i])
        return out

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        (query, entity), (dquery, dentity) = ends, grads
        p, v, h = query.split(bounds[-1], 1)
        dp, dv, dh = dquery.split(bounds[-1], 1)
        a, b = (inverse_lengths(x, bounds) for x in (h, entity))  # (n, B), (n, N)
        sums = _Sums(p, entity, a, b, dp, dv, dentity, torch.empty_like(a), torch.empty_like(b))
        gradients = loops().stretched_gradients if query.device.type == "cpu" else _block_gradients
        for i, end in enumerate(bounds[1:]):
            x, y = a[i].unsqueeze(-1) * p[:, :end], b[i].unsqueeze(-1) * entity[:, :end]
            dx, dv_i, dy = gradients(grad[i], x, v[:, :end], y)
            sums.add(i, dx, dv_i, dy, self.shares(i, bounds, p))
        dh += lengths_backward(sums.da, a, h, bounds, self.from_larger)
        dentity += lengths_backward(sums.db, b, entity, bounds, self.from_larger)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): sums of positive numbers lose little."""
        return 1e-5 * distance + 1e-6 * bounds[-1] ** 0.5

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds; leaving one out does not change the lengths."""
        return apart(query, entity, dim).abs_()


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

    def add(self, i: int, dx: Tensor, dv: Tensor, dy: Tensor, shares: Tensor) -> None:
        """Those of x = a_i p, v and y = b_i t on prefix i."""
        end = dx.shape[-1]
        self.da[i] = (dx * self.p[..., :end]).sum(-1)
        self.db[i] = (dy * self.t[..., :end]).sum(-1)
        self.dp[..., :end].add_(dx.mul_(self.a[i].unsqueeze(-1)).mul_(shares))
        self.dv[..., :end].add_(dv.mul_(shares))
        self.dt[..., :end].add_(dy.mul_(self.b[i].unsqueeze(-1)).mul_(shares))


def _block_sums(x: Tensor, v: Tensor, y: Tensor, out: Tensor) -> None:
    """out (B, N): sums of |x - v y| in blocks, on any device."""
    for rows in blocks(len(x), y.numel(), BLOCK):
        out[rows] = (x[rows, None] - v[rows, None] * y).abs_().sum(-1)


def _block_gradients(
    grad: Tensor, x: Tensor, v: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, v and y for grad (B, N) of those sums."""
    dx, dv, dy = torch.empty_like(x), torch.empty_like(x), torch.zeros_like(y)
    for rows in blocks(len(x), y.numel(), BLOCK):
        gradient = (x[rows, None] - v[rows, None] * y).sign_().mul_(grad[rows].unsqueeze(-1))
        dx[rows] = gradient.sum(1)
        dv[rows] = -(gradient * y).sum(1)
        dy -= (gradient * v[rows, None]).sum(0)
    return dx, dv, dy
