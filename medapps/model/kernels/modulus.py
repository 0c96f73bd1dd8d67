"""Sums of moduli of complex differences, RotatE's published distance.

    D_i = sum_{k < d_i} m_k,  m_k = sqrt(x_k^2 + y_k^2),  x + iy = q - e
    dq_k = A_k (x_k, y_k) / m_k,  A_k = sum of dL/dD_i over the prefixes i that hold coordinate k

No matrix product gives this: every pair of query and entity is worked through coordinate by
coordinate, by compiled loops on the processor and, elsewhere, in blocks of bounded size.
"""

from __future__ import annotations

from torch import Tensor

from medapps.model.kernels.segments import (
    blocks,
    chain_,
    chain_back_,
    loops,
    scale_segments_,
    segment_sums,
)
from medapps.model.rule import EPSILON, Bounds, Ends, Scorer

BLOCK = 2**16
"""Complex numbers that are worked on at a time."""


class Modulus(Scorer):
    """The sum of the absolute values of complex differences."""

    def aligned(self, query: Tensor, entity: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """D (n, B, K) of query (B, width) and its own entity (B, K, width); keeps differences."""
        kept = query.unsqueeze(1) - entity
        return chain_(segment_sums(_moduli(kept), _complex(bounds))), kept

    def aligned_backward(
        self, grad: Tensor, distance: Tensor, kept: Tensor, bounds: Bounds
    ) -> Ends:
        factor = _moduli(kept).reciprocal_()
        scale_segments_(factor, chain_back_(grad, self.from_larger), _complex(bounds))
        kept.view(*factor.shape, 2).mul_(factor.unsqueeze(-1))
        return kept.sum(1), -kept

    def pairs(self, query: Tensor, entity: Tensor, bounds: Bounds, out: Tensor) -> Tensor:
        """D of query (B, width) and every entity (N, width), into out (n, B, N)."""
        sums = loops().modulus_sums if query.device.type == "cpu" else _block_sums
        sums(query, entity, _complex(bounds), out)
        return chain_(out)

    def pairs_backward(
        self, grad: Tensor, distance: Tensor, ends: Ends, bounds: Bounds, grads: Ends
    ) -> None:
        chain_back_(grad, self.from_larger)
        on_processor = grad.device.type == "cpu"
        add = loops().add_modulus_gradients if on_processor else _add_block_gradients
        add(grad, ends, _complex(bounds), grads)

    def slack(self, query: Tensor, entity: Tensor, distance: Tensor, bounds: Bounds) -> Tensor:
        """(n, B): sums of positive numbers lose little."""
        return 1e-5 * distance + 1e-6 * (len(_complex(bounds)) + bounds[-1]) ** 0.5

    def terms(self, query: Tensor, entity: Tensor, dim: int) -> Tensor:
        """(..., dim): what each coordinate adds for query and entity (..., width)."""
        return _moduli(query - entity)


def _block_sums(query: Tensor, entity: Tensor, cuts: Bounds, out: Tensor) -> None:
    """Sums over segments of complex coordinates into out (n, B, N), in blocks, on any device."""
    for rows in blocks(len(query), entity.numel(), 2 * BLOCK):
        x, y = _apart(query[rows], entity)
        modulus = x.mul_(x).addcmul_(y, y).add_(EPSILON).sqrt_()  # (b, N, d)
        out[:, rows] = segment_sums(modulus, cuts)


def _add_block_gradients(grad: Tensor, ends: Ends, cuts: Bounds, grads: Ends) -> None:
    """Add the gradients of query and entity for grad (n, B, N) of those sums."""
    (query, entity), (dquery, dentity) = ends, grads
    for rows in blocks(len(query), entity.numel(), 2 * BLOCK):
        x, y = _apart(query[rows], entity)
        factor = (x * x).addcmul_(y, y).add_(EPSILON).rsqrt_()
        scale_segments_(factor, grad[:, rows], cuts)
        for part, difference in enumerate((x, y)):
            difference.mul_(factor)
            dquery[rows, part::2].add_(difference.sum(1))
            dentity[:, part::2].sub_(difference.sum(0))


def _complex(bounds: Bounds) -> Bounds:
    """Bounds in complex coordinates."""
    return tuple(bound // 2 for bound in bounds)


def _moduli(difference: Tensor) -> Tensor:
    """(..., d) of interleaved complex numbers (..., 2d)."""
    return difference.square().unflatten(-1, (-1, 2)).sum(-1).add_(EPSILON).sqrt_()


def _apart(query: Tensor, entity: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts (b, N, d) of all differences."""
    parts = (x[:, part::2].contiguous() for part in (0, 1) for x in (query, entity))
    a, b, c, d = parts
    return a.unsqueeze(1) - b, c.unsqueeze(1) - d
