"""The dynamic loss weight: how much the loss of each sub-model counts, and how w3 is learned.

a_i = 1 | exp(w3 d_i/d_n)
"""

from __future__ import annotations

import torch
from torch import Tensor


def shares(mode: str, w3: float, dims: tuple[int, ...]) -> Tensor:
    """a (n,): weights of the sub-models' losses."""
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    if mode == "off":
        return torch.ones_like(x)
    return torch.exp(w3 * x)


def step_w3(mode: str, w3: float, ei: Tensor, dims: tuple[int, ...], lr: float) -> float:
    """w3 after one step of descent on sum a_i EI_i, where it is learned."""
    if mode != "literal":
        return w3
    x = torch.tensor([d / dims[-1] for d in dims], dtype=torch.float64)
    ei = ei.double().cpu()
    a = shares(mode, w3, dims)
    return w3 - lr * float((x * a * ei).sum())
