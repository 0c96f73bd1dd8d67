"""Randomness by counter: every draw is a function of seed, purpose, epoch and step.

A resumed run needs only its counters, the processes of a distributed run agree without talking, and
the initial value of a row depends on the row alone.
"""

from __future__ import annotations

import numpy as np

from medapps.config import LARGEST_SEED
from medapps.errors import MedappsError

INIT, ORDER, NEGATIVES, HOLDOUT, CANDIDATES, ROUNDING, DROPS = 0, 1, 2, 4, 5, 6, 7
"""Purposes: streams that never meet."""
BLOCK = 4096
"""Rows of a table that are drawn together."""


def stream(seed: int, purpose: int, *counters: int) -> np.random.Generator:
    """A generator that belongs to these numbers alone; at most three counters."""
    place = [0, *counters, *(0,) * (3 - len(counters))]
    if not 0 <= seed <= LARGEST_SEED:
        raise MedappsError(f"A seed is a number from 0 to {LARGEST_SEED}, not {seed}.")
    key = np.array([seed, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array(place, np.uint64)))


def start_rows(
    seed: int, table: int, first: int, count: int, width: int, size: float
) -> np.ndarray:
    """float32 (count, width): uniform start values; rows have expected length about `size`."""
    bound = size * np.sqrt(3.0 / width)
    out = np.empty((count, width), np.float32)
    for block in range(first // BLOCK, -(-(first + count) // BLOCK)):
        rows = stream(seed, INIT, table, block).random((BLOCK, width), np.float32)
        begin = max(first, block * BLOCK)
        end = min(first + count, (block + 1) * BLOCK)
        out[begin - first : end - first] = rows[begin - block * BLOCK : end - block * BLOCK]
    out *= 2 * bound
    out -= bound
    return out


def shuffled(positions: np.ndarray, total: int, seed: int, epoch: int, part: int = 0) -> np.ndarray:
    """int64: where a random permutation of range(total) sends `positions`, without building it.

    A Feistel network over the grid (a, b) with a * b >= total; the few images beyond `total` walk
    on.
    """
    a = max(1, int(np.ceil(np.sqrt(total))))
    b = -(-total // a)
    keys = stream(seed, ORDER, epoch, part).integers(1, 2**63, 6, np.uint64) | np.uint64(1)
    out = np.asarray(positions, np.uint64)
    out = _round_trip(out, np.uint64(a), np.uint64(b), keys)
    while (beyond := out >= total).any():
        out[beyond] = _round_trip(out[beyond], np.uint64(a), np.uint64(b), keys)
    return out.astype(np.int64)


def _round_trip(x: np.ndarray, a: np.uint64, b: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = x // b, x % b
    for i, key in enumerate(keys):
        if i % 2 == 0:
            left = (left + _mix(right, key)) % a
        else:
            right = (right + _mix(left, key)) % b
    return left * b + right


def _mix(x: np.ndarray, key: np.uint64) -> np.ndarray:
    """A number below 2^40 that hardly resembles x."""
    x = (x + key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= key
    return x >> np.uint64(24)
