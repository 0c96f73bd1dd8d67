"""Loops over rows that a matrix product cannot do, compiled, on one thread."""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Sums in any order, infinities kept."""


@njit(cache=True, fastmath=FAST, error_model="numpy", nogil=True)
def moments(values: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> None:
    """Mean and standard deviation of each row of values (n, items), into (n,) each."""
    rows, width = values.shape
    for row in range(rows):
        shift = values[row, 0]
        total = np.float32(0)
        square = np.float32(0)
        for k in range(width):
            x = values[row, k] - shift
            total += x
            square += x * x
        centre = total / width
        mean[row] = centre + shift
        deviation[row] = np.sqrt(max(square / width - centre * centre, np.float32(0)))


@njit(cache=True, fastmath=FAST, error_model="numpy", nogil=True)
def add_scaled(values: np.ndarray, shift: np.ndarray, scale: np.ndarray, out: np.ndarray) -> None:
    """out += (values - shift) * scale, with a shift and scale per row."""
    rows, width = values.shape
    for row in range(rows):
        a, b = scale[row], shift[row] * scale[row]
        for k in range(width):
            out[row, k] += values[row, k] * a - b


@njit(cache=True, error_model="numpy", nogil=True)
def add_sparse(
    pointer: np.ndarray, columns: np.ndarray, values: np.ndarray, scale: np.ndarray, out: np.ndarray
) -> None:
    """out += scale per row * a sparse matrix of the same shape."""
    for row in range(len(out)):
        for at in range(pointer[row], pointer[row + 1]):
            out[row, columns[at]] += scale[row] * values[at]


@njit(cache=True, error_model="numpy", nogil=True)
def best(values: np.ndarray, k: int, ids: np.ndarray, top: np.ndarray) -> None:
    """The k largest of each row in descending order, of equal ones the lower id first.

    Blocks of a row whose maximum is not above the k-th best so far are passed over.
    """
    rows, width = values.shape
    for row in range(rows):
        line = values[row]
        for j in range(k):
            top[row, j] = -np.inf
            ids[row, j] = -1
        least = np.float32(-np.inf)
        for begin in range(0, width, 64):
            end = min(begin + 64, width)
            most = np.float32(-np.inf)
            for c in range(begin, end):
                most = max(most, line[c])
            if most <= least:
                continue
            for c in range(begin, end):
                x = line[c]
                if x > least:
                    j = k - 1
                    while j > 0 and top[row, j - 1] < x:
                        top[row, j] = top[row, j - 1]
                        ids[row, j] = ids[row, j - 1]
                        j -= 1
                    top[row, j] = x
                    ids[row, j] = c
                    least = top[row, k - 1]
