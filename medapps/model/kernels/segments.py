"""Sums and matrix products over segments of coordinates, and chains of them over prefixes.

Coordinates are cut into segments j between neighbouring dims; a prefix i is the segments j <= i.
Backward, a segment collects the gradients of every prefix that holds it, or a fraction of them.

    products            P_i = sum_{j <= i} (c_j + a x_j y_j^T)
    products_backward   dx_j += a G_j y_j,  dy_j += a G_j^T x_j     G_j = dL/dP summed over i >= j

Many equal segments go through one batched product, a few through one product each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor

from medapps.model.rule import Bounds

FEW = 8
"""Up to this many segments a loop beats a product with the indicator matrix."""


@cache
def loops() -> ModuleType:
    """Compiled loops for what no matrix product gives; Numba takes a while to load."""
    return import_module("medapps.model.kernels.numba_loops")


@cache
def _indicator(bounds: Bounds, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(width, segments): 1 where the column lies in the segment."""
    out = torch.zeros(bounds[-1], len(bounds) - 1, dtype=dtype)
    for j, (a, b) in enumerate(pairwise(bounds)):
        out[a:b, j] = 1
    return out.to(device)


def even_width(bounds: Bounds) -> int:
    """The width of all segments where they are many and equal, else 0: one batched product does."""
    width = bounds[1]
    even = len(bounds) - 1 > FEW and all(b - a == width for a, b in pairwise(bounds))
    return width if even else 0


def segment_sums(x: Tensor, bounds: Bounds) -> Tensor:
    """(n, ...): sums of x (..., width) over each segment."""
    if len(bounds) - 1 <= FEW:
        return torch.stack([x[..., a:b].sum(-1) for a, b in pairwise(bounds)])
    if even := even_width(bounds):
        wide = x.reshape(-1, even) @ torch.ones(even, dtype=x.dtype, device=x.device)
        wide = wide.view(*x.shape[:-1], -1)
    else:
        wide = x @ _indicator(bounds, x.dtype, x.device)
    return torch.movedim(wide, -1, 0).contiguous()


def scale_segments_(x: Tensor, factor: Tensor, bounds: Bounds) -> Tensor:
    """Multiply segment j of x (..., width) by factor (n, ...), in place."""
    if len(bounds) - 1 <= FEW:
        for j, (a, b) in enumerate(pairwise(bounds)):
            x[..., a:b].mul_(factor[j].unsqueeze(-1))
        return x
    wide = torch.movedim(factor, 0, -1)  # (..., n)
    if even := even_width(bounds):
        x.view(*wide.shape, even).mul_(wide.unsqueeze(-1))
        return x
    return x.mul_(wide @ _indicator(bounds, x.dtype, x.device).T)


def add_scaled_(x: Tensor, y: Tensor, factor: Tensor, bounds: Bounds) -> Tensor:
    """Add segment j of y (k, width) times factor (n, k) to x, in place."""
    if even := even_width(bounds):
        y = y.view(len(y), -1, even)
        x.view(len(x), -1, even).addcmul_(y, factor.T.unsqueeze(-1))
        return x
    for j, (a, b) in enumerate(pairwise(bounds)):
        x[:, a:b].addcmul_(y[:, a:b], factor[j].unsqueeze(-1))
    return x


def chain_(x: Tensor) -> Tensor:
    """Cumulative sum over the first axis, in place."""
    if (groups := _groups(x)) is not None:
        for before, after in pairwise(groups.unbind(1)):
            after += before
        for before, after in pairwise(groups.unbind(0)):
            after += before[-1]
        return x
    for before, after in pairwise(x.unbind(0)):
        after += before
    return x


def chain_back_(x: Tensor, share: float = 1.0) -> Tensor:
    """Reverse cumulative sum over the first axis, in place; `share` of what came before goes on."""
    if share == 1.0 and (groups := _groups(x)) is not None:
        for before, after in pairwise(reversed(groups.unbind(1))):
            after += before
        for before, after in pairwise(reversed(groups.unbind(0))):
            after += before[0]
        return x
    for before, after in pairwise(reversed(x.unbind(0))):
        after.add_(before, alpha=share)
    return x


def divided_chain_back_(x: Tensor, by: Tensor, share: float = 1.0) -> Tensor:
    """`chain_back_` of x / by, in place."""
    if len(x) > FEW or share != 1.0:
        return chain_back_(x.div_(by), share)
    x[-1].div_(by[-1])
    rows = list(zip(x.unbind(0), by.unbind(0), strict=True))
    for (before, _), (after, divisor) in pairwise(reversed(rows)):
        torch.addcdiv(before, after, divisor, out=after)
    return x


def blocks(rows: int, each: int, limit: int) -> Iterator[slice]:
    """Ranges of rows that hold at most `limit` numbers, `each` of them in a row."""
    size = max(1, limit // max(1, each))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _groups(x: Tensor) -> Tensor | None:
    """(groups, FEW, ...): many segments in groups, for fewer and larger sums; None for a few."""
    if len(x) <= 2 * FEW or len(x) % FEW or not x.is_contiguous():
        return None
    return x.view(-1, FEW, *x.shape[1:])


def products(
    x: Tensor,
    y: Tensor,
    bounds: Bounds,
    out: Tensor,
    *,
    alpha: float = 1.0,
    add: Tensor | None = None,
) -> Tensor:
    """P (n, B, N) of x (B, width) and y (N, width) into `out`; `add` (n, N) is c."""
    if even := even_width(bounds):
        left, right = (z.view(len(z), -1, even).transpose(0, 1) for z in (x, y))
        start = x.new_zeros(()).expand(len(bounds) - 1, 1, 1) if add is None else add.unsqueeze(1)
        beta = 0.0 if add is None else 1.0
        torch.baddbmm(start, left, right.mT, beta=beta, alpha=alpha, out=out)
        return chain_(out)
    for j, (a, b) in enumerate(pairwise(bounds)):
        if add is not None:
            torch.addmm(add[j], x[:, a:b], y[:, a:b].T, alpha=alpha, out=out[j])
        else:
            torch.addmm(out[j], x[:, a:b], y[:, a:b].T, beta=0.0, alpha=alpha, out=out[j])
        if j:
            out[j].add_(out[j - 1])
    return out


def products_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    bounds: Bounds,
    grads: tuple[Tensor, Tensor],
    *,
    alpha: float = 1.0,
) -> None:
    """Add to the gradients of x and y for G (n, B, N)."""
    dx, dy = grads
    if even := even_width(bounds):  # products with the long side last run several times faster
        for to, other, g in ((dx, y, grad.mT), (dy, x, grad)):
            cut = other.view(len(other), -1, even).permute(1, 2, 0)  # (n, even, rows)
            part = torch.bmm(cut, g).permute(2, 0, 1)
            to.view(len(to), -1, even).add_(part, alpha=alpha)
        return
    for j, (a, b) in enumerate(pairwise(bounds)):
        dx[:, a:b].addmm_(grad[j], y[:, a:b], alpha=alpha)
        dy[:, a:b].addmm_(grad[j].T, x[:, a:b], alpha=alpha)
