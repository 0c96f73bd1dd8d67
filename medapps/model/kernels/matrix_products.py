"""Matrix products of every segment, chained over prefixes, and their gradients.

    forward   P_i = sum_{j <= i} (c_j + a x_j y_j^T)
    backward  dx_j += a G_j y_j,  dy_j += a G_j^T x_j         G_j = dL/dP summed over i >= j

Many equal segments go through one batched product, a few through one product each.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from medapps.model.kernels.segments import Bounds, chain_, even_width


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
    dx: Tensor,
    dy: Tensor,
    *,
    alpha: float = 1.0,
) -> None:
    """Add to dx and dy for G (n, B, N)."""
    if even := even_width(bounds):  # products with the long side last run several times faster
        for to, other, g in ((dx, y, grad.mT), (dy, x, grad)):
            cut = other.view(len(other), -1, even).permute(1, 2, 0)  # (n, even, rows)
            part = torch.bmm(cut, g).permute(2, 0, 1)
            to.view(len(to), -1, even).add_(part, alpha=alpha)
        return
    for j, (a, b) in enumerate(pairwise(bounds)):
        dx[:, a:b].addmm_(grad[j], y[:, a:b], alpha=alpha)
        dy[:, a:b].addmm_(grad[j].T, x[:, a:b], alpha=alpha)
