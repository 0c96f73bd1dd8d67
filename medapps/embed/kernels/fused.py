"""Compiled loops for what no matrix product gives: sums of moduli over all pairs of two sets.

Torch would write every coordinate of every pair to memory, several times. Here a pair's sum stays
in the processor's registers. A row is worked on by one thread, so that results do not depend on how
many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numba import njit

from medapps.score.spec import EPSILON

FAST = {"reassoc", "contract", "arcp", "afn", "nsz"}
"""Sums may be reordered and roots approximated to the last bits; a NaN stays a NaN."""
compiled: Callable[[Callable[..., None]], Callable[..., None]] = njit(
    nogil=True, cache=True, fastmath=FAST, error_model="numpy"
)


def modulus_sums(query: np.ndarray, entity: np.ndarray, cuts: np.ndarray, out: np.ndarray) -> None:
    """out (n, B, N): sums of |q - e| over segments of complex coordinates, cut at `cuts`, for
    interleaved q (B, 2d) and e (N, 2d).
    """
    (x, y), ends, tiny = _parts(query), _parts(entity), query.dtype.type(EPSILON)

    def work(rows: slice) -> None:
        _sums(x[rows], y[rows], *ends, cuts, tiny, out[:, rows])

    _by_rows(work, len(query))


def add_modulus_slopes(
    grad: np.ndarray, rows: np.ndarray, others: np.ndarray, cuts: np.ndarray, out: np.ndarray
) -> None:
    """Add to out (B, 2d) the gradient of interleaved `rows` for grad (n, B, N) of their sums with
    N `others`.
    """
    (x, y), ends = _parts(rows), [np.ascontiguousarray(part.T) for part in _parts(others)]
    tiny, dx, dy = rows.dtype.type(EPSILON), np.empty_like(x), np.empty_like(y)

    def work(some: slice) -> None:
        _slopes(x[some], y[some], *ends, cuts, grad[:, some], tiny, dx[some], dy[some])

    _by_rows(work, len(rows))
    out[:, 0::2] += dx
    out[:, 1::2] += dy


@compiled
def _sums(qx, qy, ex, ey, cuts, tiny, out):  # type: ignore[no-untyped-def]
    """Vectors run over coordinates: q (B, d), e (N, d)."""
    for b in range(qx.shape[0]):
        for k in range(ex.shape[0]):
            for j in range(out.shape[0]):
                first, last = cuts[j], cuts[j + 1]
                x, y = qx[b, first:last], qy[b, first:last]
                u, v = ex[k, first:last], ey[k, first:last]
                total = tiny - tiny
                for c in range(len(x)):
                    real, imaginary = x[c] - u[c], y[c] - v[c]
                    total += np.sqrt(real * real + imaginary * imaginary + tiny)
                out[j, b, k] = total


@compiled
def _slopes(qx, qy, ex, ey, cuts, grad, tiny, dx, dy):  # type: ignore[no-untyped-def]
    """Vectors run over the others: q (B, d), e (d, N), so that sums over N need no memory."""
    for b in range(qx.shape[0]):
        for j in range(grad.shape[0]):
            weight = grad[j, b]
            for c in range(cuts[j], cuts[j + 1]):
                x, y = qx[b, c], qy[b, c]
                u, v = ex[c], ey[c]
                along, across = tiny - tiny, tiny - tiny
                for k in range(len(weight)):
                    real, imaginary = x - u[k], y - v[k]
                    slope = weight[k] / np.sqrt(real * real + imaginary * imaginary + tiny)
                    along += real * slope
                    across += imaginary * slope
                dx[b, c] = along
                dy[b, c] = across


def _parts(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts (k, d) of interleaved complex numbers (k, 2d)."""
    return np.ascontiguousarray(rows[:, 0::2]), np.ascontiguousarray(rows[:, 1::2])


def _by_rows(work: Callable[[slice], None], rows: int) -> None:
    """Do `work` on all rows, a range of them on each of torch's threads."""
    threads = max(1, min(torch.get_num_threads(), rows))
    cuts = np.linspace(0, rows, threads + 1).astype(int).tolist()
    if threads == 1:
        work(slice(0, rows))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, map(slice, cuts[:-1], cuts[1:])))
