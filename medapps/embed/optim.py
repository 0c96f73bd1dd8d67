"""Optimisers that move only the rows that a step touched, and dense Adam for small graphs.

    adagrad    v_r += mean(g_r^2);  x_r -= lr g_r / (sqrt(v_r) + eps)
               (one number per row: it does not change when the space is rotated)
    lazy_adam  Adam's moments on touched rows, bias correction by the global step
    adam       the same on every row at every step

The state is a dictionary of tensors whose first axis is the row, so that checkpoints and other
kinds of tables need not know which optimiser it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from medapps.embed.table import blank

EPS = 1e-10
ADAM_EPS = 1e-8
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Optimiser:
    """Moves rows of one table; `count` of steps so far is the caller's."""

    name: str
    state: dict[str, Tensor]

    def step(self, table: Tensor, ids: Tensor, grad: Tensor, lr: float, count: int) -> None:
        """Move rows `ids` (u,), unique, by their summed gradients (u, width); overwrites grad."""
        if self.name == "adagrad":
            _adagrad(table, self.state["square"], ids, grad, lr)
        elif self.name == "lazy_adam":
            _lazy_adam(table, self.state, ids, grad, lr, count)
        else:
            _adam(table, self.state, ids, grad, lr, count)


def make_optimiser(name: str, table: Tensor) -> Optimiser:
    """Fresh state for `table`."""
    if name == "adagrad":
        return Optimiser(name, {"square": torch.zeros(len(table), device=table.device)})
    shape = (table.shape[0], table.shape[1])
    moments = {key: blank(shape, table.device).to(table.dtype) for key in ("first", "second")}
    return Optimiser(name, moments)


def state_bytes(name: str, rows: int, width: int) -> int:
    """Bytes of the state for a float32 table."""
    return 4 * rows if name == "adagrad" else 8 * rows * width


def _adagrad(table: Tensor, square: Tensor, ids: Tensor, grad: Tensor, lr: float) -> None:
    length = torch.linalg.vector_norm(grad, dim=1)
    total = square[ids].add_(length.square_().div_(grad.shape[1]))
    square[ids] = total
    grad.mul_(total.sqrt_().add_(EPS).reciprocal_().mul_(-lr).unsqueeze(1))
    table.index_add_(0, ids, grad)


def _lazy_adam(
    table: Tensor, state: dict[str, Tensor], ids: Tensor, grad: Tensor, lr: float, count: int
) -> None:
    first = state["first"][ids].mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
    second = state["second"][ids].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
    state["first"][ids] = first
    state["second"][ids] = second
    table.index_add_(0, ids, _adam_move(first, second, lr, count))


def _adam(
    table: Tensor, state: dict[str, Tensor], ids: Tensor, grad: Tensor, lr: float, count: int
) -> None:
    first, second = state["first"].mul_(BETAS[0]), state["second"].mul_(BETAS[1])
    first.index_add_(0, ids, grad, alpha=1 - BETAS[0])
    second.index_add_(0, ids, grad.square_(), alpha=1 - BETAS[1])
    table.add_(_adam_move(first.clone(), second.clone(), lr, count))


def _adam_move(first: Tensor, second: Tensor, lr: float, count: int) -> Tensor:
    """-lr m^ / (sqrt(v^) + eps); overwrites its arguments."""
    scale = lr / (1 - BETAS[0] ** (count + 1))
    root = second.div_(1 - BETAS[1] ** (count + 1)).sqrt_().add_(ADAM_EPS)
    return first.div_(root).mul_(-scale)
