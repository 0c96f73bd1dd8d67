"""Optimisers that move only the rows that a step touched.

    adagrad    v_rj += mean(g_rj^2);  x_rj -= lr g_rj / (sqrt(v_rj) + eps)
               (one number per row r and segment j; with one segment it is blind to rotations. The
               first segments collect the gradients of all sub-models: sharing one v_r with them
               would slow the later ones down)
    lazy_adam  Adam's moments on touched rows, bias correction by the global step

Every segment may have its own rate: a model of few dimensions wants longer steps than a large one.
Rows whose length says nothing may keep it: every step pulls away from where a row lies, so that it
would grow, and be turned less and less by steps of the same size.

The state is a dictionary of tensors whose first axis is the row, so that checkpoints and other
kinds of tables need not know which optimiser it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from medapps.model.kernels.segments import scale_segments_, segment_sums
from medapps.model.scorer import Bounds
from medapps.train.tables.bf16 import add_rows
from medapps.train.tables.rows import blank

EPS = 1e-10
ADAM_EPS = 1e-8
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Optimiser:
    """Moves rows of one table; `count` of steps so far is the caller's."""

    name: str
    state: dict[str, Tensor]
    bounds: Bounds
    rates: Tensor
    """(n,): what multiplies the learning rate in each segment."""
    seed: int = 0
    """Of the rounding of a bfloat16 table."""
    length: float | None = None
    """What moved rows are scaled back to; None leaves them as they are."""

    def step(self, table: Tensor, ids: Tensor, grad: Tensor, lr: float, count: int) -> None:
        """Move rows `ids` (u,), unique, by their summed gradients (u, width); overwrites grad."""
        rates = lr * self.rates
        if self.name == "adagrad":
            move = _adagrad(self.state["square"], ids, grad, rates, self.bounds)
        else:
            move = _lazy_adam(self.state, ids, grad, count)
            scale_segments_(move, rates.unsqueeze(1).expand(-1, len(move)), self.bounds)
        if self.length is not None:
            move = _turn(table[ids].to(move.dtype), move, self.length)
        add_rows(table, ids, move, self.seed, count)


def make_optimiser(
    name: str,
    table: Tensor,
    bounds: Bounds | None = None,
    *,
    rate: float = 1.0,
    rate_power: float = 0.0,
    length: float | None = None,
    seed: int = 0,
    fresh: Callable[[tuple[int, int]], Tensor] | None = None,
) -> Optimiser:
    """Fresh state for `table`, whose columns are cut at `bounds` (one segment when None).

    `rate` multiplies all rates; with `rate_power` q the segment that ends at column w has rates
    (width / w)^q times as large. `fresh` makes the zeros of the state.
    """
    bounds = bounds or (0, table.shape[1])
    kind = torch.promote_types(table.dtype, torch.float32)
    ends = torch.tensor(bounds[1:], dtype=kind, device=table.device)
    rates = rate * (ends[-1] / ends) ** rate_power
    fresh = fresh or partial(blank, device=table.device)
    if name == "adagrad":
        square = fresh((len(table), len(bounds) - 1))
        return Optimiser(name, {"square": square}, bounds, rates, seed, length)
    shape = (table.shape[0], table.shape[1])
    moments = {key: fresh(shape).to(kind) for key in ("first", "second")}
    return Optimiser(name, moments, bounds, rates, seed, length)


def state_bytes(name: str, rows: int, width: int, segments: int) -> int:
    """Bytes of the state, whatever the number type of the table."""
    return 4 * rows * segments if name == "adagrad" else 8 * rows * width


def _adagrad(square: Tensor, ids: Tensor, grad: Tensor, rates: Tensor, bounds: Bounds) -> Tensor:
    total = square[ids]  # (u, n)
    widths = torch.tensor(bounds, dtype=grad.dtype, device=grad.device).diff()
    total += segment_sums(grad * grad, bounds).T / widths
    square[ids] = total
    return scale_segments_(grad, total.sqrt_().add_(EPS).reciprocal_().mul_(-rates).T, bounds)


def _lazy_adam(state: dict[str, Tensor], ids: Tensor, grad: Tensor, count: int) -> Tensor:
    first = state["first"][ids].mul_(BETAS[0]).add_(grad, alpha=1 - BETAS[0])
    second = state["second"][ids].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
    state["first"][ids] = first
    state["second"][ids] = second
    return _adam_move(first, second, count)


def _adam_move(first: Tensor, second: Tensor, count: int) -> Tensor:
    """-m^ / (sqrt(v^) + eps), for a rate of one; overwrites its arguments."""
    scale = 1 / (1 - BETAS[0] ** (count + 1))
    root = second.div_(1 - BETAS[1] ** (count + 1)).sqrt_().add_(ADAM_EPS)
    return first.div_(root).mul_(-scale)


def _turn(rows: Tensor, move: Tensor, length: float) -> Tensor:
    """The move from rows to where rows + move point, at this length."""
    moved = move.add_(rows)
    longest = torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp_min_(EPS)
    return moved.mul_(length / longest).sub_(rows)
