"""The gradient of the usual losses on negatives, a few sub-models at a time to stay in the cache.

What it computes is said, and computed in general, in medapps/train/loss/med.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from medapps.train.loss.med import PositiveSlice, SubModels, Weights

HIGHEST = 40.0
"""Margins (times w2) up to this need no shift: exp(-c D) keeps its digits where scores matter."""
GROUP = 2**19
"""Scores that the fast path works on at a time."""
LOG2E = 1.4426950408889634
LEAST = 1e-37
"""What a sum of exponentials is at least: where all of them vanish, so do their gradients."""


def fast_pairs(
    distance: Tensor,
    models: SubModels,
    weights: Weights,
    near: PositiveSlice,
    buffers: tuple[Tensor, Tensor, Tensor],
) -> None:
    """The gradient of the usual choices, a few sub-models at a time to stay in the cache.

    With E = exp(-c D - z), z a shift per row that cancels, M = exp(-m - z) and tau = w2:
    w = E^tau / sum E^tau,  sigmoid(s) = E / (E + M),  P = E / (sum E + own).
    """
    power, spare, grad = buffers
    size = max(1, GROUP // distance[0].numel())
    teacher = None
    for first, last in _groups(models.temperature, size):
        part = slice(first, last)
        some = models.part(part)
        share = some.share / near.of
        work = power[: last - first], spare[: last - first], grad[part]
        shift = None
        if not weights.plain_powers:
            shift = distance[part].amin(-1, keepdim=True) * -some.scale  # the largest -c D of a row
        factor = _fast_part(distance[part], some, share, work, shift)
        kd = None
        if models.taught:
            own = -some.scale * near.distance[part].unsqueeze(-1) - (
                0.0 if shift is None else shift
            )
            own = own.clamp_max_(HIGHEST).exp_()
            total = work[0].sum(-1, keepdim=True).add_(own).clamp_min_(LEAST)  # (k, b, 1)
            own /= total
            if teacher is None:
                teacher = work[0][0] / total[0], own[0]  # (b, N), (b, 1)
            else:
                kd = -some.scale * share * some.distil  # dL/dD = -c dL/ds
                near.grad[part].add_(((own - teacher[1]) * kd)[..., 0])
                total = kd / total
        work[1].mul_(factor)
        if some.temperature[0] not in (1.0, 2.0):
            torch.mul(work[1], work[2], out=work[2])
            if kd is not None:
                work[2].addcmul_(work[0], total)
        else:
            torch.mul(work[1] if kd is None else work[1].add_(total), work[0], out=work[2])
        if kd is not None and teacher is not None:
            work[2].addcmul_(teacher[0], kd, value=-1)


def _groups(temperature: tuple[float, ...], size: int) -> Iterator[tuple[int, int]]:
    """First and last + 1 of at most `size` sub-models with one temperature; the teacher first."""
    n, first = len(temperature), 0
    yield n - 1, n
    for i in range(1, n):
        if i - first == size or temperature[i] != temperature[first] or i == n - 1:
            yield first, i
            first = i


def _fast_part(
    distance: Tensor,
    models: SubModels,
    share: Tensor,
    work: tuple[Tensor, Tensor, Tensor],
    shift: Tensor | None,
) -> Tensor:
    """A factor (k, b, 1) of dL/dD of EI; the rest of it is spread over the work tensors:

    E, then what E (for tau 1 and 2; else E^tau, the last work tensor) and the factor multiply.
    """
    power, spare, grad = work
    tau = models.temperature[0]
    torch.mul(distance, -LOG2E * models.scale, out=power)
    floor = -LOG2E * models.margin
    if shift is not None:
        shift = LOG2E * shift
        power.sub_(shift)
        floor = (floor - shift).clamp_(-126.0, 126.0)  # no 0 / 0, no overflow
    if tau not in (1.0, 2.0):
        torch.mul(power, tau, out=grad).exp2_()
    power.exp2_()
    torch.add(power, floor.exp2(), out=spare)
    torch.div(power, spare, out=spare)
    if tau == 2.0:
        spare.mul_(power)
        total = torch.linalg.vector_norm(power, dim=-1, keepdim=True).square_()
    else:
        total = (power if tau == 1.0 else grad).sum(-1, keepdim=True)
    return -models.scale * share / total.clamp_min_(LEAST)
