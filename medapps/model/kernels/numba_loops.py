"""Compiled loops for what no matrix product gives: sums of absolute values over pairs of two sets.

Torch would write every coordinate of every pair to memory, several times. Here a pair's sum stays
in the processor's registers. Rows, or coordinates, are shared out among as many threads as torch
uses, each to one of them, so that results do not depend on how many there are. Arrays come whole:
over a slice whose rows lie apart the loops would not be vectorised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from medapps.model.rule import EPSILON, Bounds, Ends

FAST = {"reassoc", "contract", "arcp", "afn", "nsz"}
"""Sums may be reordered and roots approximated to the last bits; a NaN stays a NaN."""


def _start_threads() -> int:
    """How many threads there can be; to start them resets torch's number where both share them."""
    threads = torch.get_num_threads()
    most = numba.get_num_threads()
    torch.set_num_threads(threads)
    return int(most)


MOST = _start_threads()


def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """The loop as machine code, its `prange` on as many threads as torch uses."""
    fast = njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")(loop)

    @wraps(loop)
    def run(*arrays: object) -> None:
        numba.set_num_threads(min(torch.get_num_threads(), MOST))
        fast(*arrays)

    return run


def modulus_sums(query: Tensor, entity: Tensor, cuts: Bounds, out: Tensor) -> None:
    """out (n, B, N): sums of |q - e| over segments of complex coordinates, cut at `cuts`, for
    interleaved q (B, 2d) and e (N, 2d).
    """
    q, e = np.asarray(query), np.asarray(entity)
    x, y = np.ascontiguousarray(q[:, 0::2]), np.ascontiguousarray(q[:, 1::2])
    _sums(x, y, *_columns(e), np.array(cuts), q.dtype.type(EPSILON), np.asarray(out))


def add_modulus_gradients(grad: Tensor, ends: Ends, cuts: Bounds, grads: Ends) -> None:
    """Add to dquery (B, 2d) and dentity (N, 2d) the gradients for grad (n, B, N) of their sums."""
    query, entity = (np.asarray(end) for end in ends)
    columns = *_columns(query), *_columns(entity)
    found = [np.zeros_like(end) for end in columns]
    segment = np.repeat(np.arange(len(grad)), np.diff(cuts))  # of each coordinate
    _gradients(*columns, segment, np.asarray(grad), query.dtype.type(EPSILON), *found)
    for out, parts in ((np.asarray(grads[0]), found[:2]), (np.asarray(grads[1]), found[2:])):
        out[:, 0::2] += parts[0].T
        out[:, 1::2] += parts[1].T


def stretched_sums(x: Tensor, v: Tensor, y: Tensor, out: Tensor) -> None:
    """out (B, N): sums of |x - v y| for x, v (B, d) and y (N, d)."""
    a, b, c = (np.ascontiguousarray(part) for part in (x, v, y))
    _stretched(a, b, c, a.dtype.type(0), np.asarray(out))


def stretched_gradients(
    grad: Tensor, x: Tensor, v: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, v (B, d) and y (N, d) for grad (B, N) of their sums."""
    ends = [np.ascontiguousarray(np.asarray(part).T) for part in (x, v, y)]
    dx, dv, dy = gradients = [np.zeros_like(end) for end in ends]
    _stretched_gradients(*ends, np.asarray(grad), ends[0].dtype.type(0), *gradients)
    return torch.from_numpy(dx.T), torch.from_numpy(dv.T), torch.from_numpy(dy.T)


@compiled
def _sums(qx, qy, ex, ey, cuts, tiny, out):  # type: ignore[no-untyped-def]
    """Vectors run over the others: q (B, d), e (d, N), so that short segments are no slower."""
    for b in prange(qx.shape[0]):
        for j in range(out.shape[0]):
            total = out[j, b]
            total[:] = tiny - tiny
            for c in range(cuts[j], cuts[j + 1]):
                x, y = qx[b, c], qy[b, c]
                u, v = ex[c], ey[c]
                for k in range(len(total)):
                    real, imaginary = x - u[k], y - v[k]
                    total[k] += np.sqrt(real * real + imaginary * imaginary + tiny)


@compiled
def _gradients(qx, qy, ex, ey, segment, grad, tiny, dqx, dqy, dex, dey):  # type: ignore[no-untyped-def]
    """A coordinate at a time, q (d, B) and e (d, N), so that both ends share one root."""
    for c in prange(qx.shape[0]):
        u, v, du, dv = ex[c], ey[c], dex[c], dey[c]
        for b in range(qx.shape[1]):
            x, y, weight = qx[c, b], qy[c, b], grad[segment[c], b]
            along, across = tiny - tiny, tiny - tiny
            for k in range(len(weight)):
                real, imaginary = x - u[k], y - v[k]
                gradient = weight[k] / np.sqrt(real * real + imaginary * imaginary + tiny)
                real *= gradient
                imaginary *= gradient
                along += real
                across += imaginary
                du[k] -= real
                dv[k] -= imaginary
            dqx[c, b] = along
            dqy[c, b] = across


@compiled
def _stretched(x, v, y, zero, out):  # type: ignore[no-untyped-def]
    """Vectors run over coordinates."""
    for b in prange(x.shape[0]):
        start, factor = x[b], v[b]
        for k in range(y.shape[0]):
            end, total = y[k], zero
            for c in range(len(start)):
                total += abs(start[c] - factor[c] * end[c])
            out[b, k] = total


@compiled
def _stretched_gradients(x, v, y, grad, zero, dx, dv, dy):  # type: ignore[no-untyped-def]
    """A coordinate at a time, x and v (d, B), y (d, N)."""
    for c in prange(x.shape[0]):
        end, back = y[c], dy[c]
        for b in range(x.shape[1]):
            start, factor, weight = x[c, b], v[c, b], grad[b]
            along, across = zero, zero
            for k in range(len(weight)):
                gradient = weight[k] if start > factor * end[k] else -weight[k]
                along += gradient
                across -= gradient * end[k]
                back[k] -= gradient * factor
            dx[c, b] = along
            dv[c, b] = across


def _columns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts (d, k) of interleaved complex numbers (k, 2d)."""
    return np.ascontiguousarray(rows.T[0::2]), np.ascontiguousarray(rows.T[1::2])
