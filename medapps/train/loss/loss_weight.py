"""The dynamic loss weight: how much the loss of each sub-model counts, and how w3 is learned.

a_i = 1 | exp(w3 d_i/d_n) | n softmax_i(w3 d_i/d_n)
"""

from __future__ import annotations

import torch
from torch import Tensor


def shares(mode: str, w3: float, dims: tuple[int, ...]) -> Tensor:
    """a (n,): weights of the sub-models' losses."""
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    if mode == "off":
        return torch.ones_like(x)
    if mode == "normalised":
        return len(dims) * torch.softmax(w3 * x, 0)
    return torch.exp(w3 * x)


def step_w3(mode: str, w3: float, ei: Tensor, dims: tuple[int, ...], lr: float) -> float:
    """w3 after one step of descent on sum a_i EI_i, for the modes that learn it."""
    if mode in ("off", "fixed"):
        return w3
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    ei = ei.double().cpu()
    a = shares(mode, w3, dims)
    if mode == "normalised":  # covariance of d_i/d_n and EI_i under the softmax
        slope = float((a * ei * (x - (a * x).sum() / len(dims))).sum())
        return min(3.0, max(0.0, w3 - lr * slope))
    slope = float((x * a * ei).sum())
    return w3 - lr * (slope - float(x.sum()) if mode == "uncertainty" else slope)
