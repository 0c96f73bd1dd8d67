"""Purchases whose right answer is known: on a checkerboard, users of one colour buy its items."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix


def checkerboard(size: int = 40) -> tuple[csr_matrix, csr_matrix]:
    """Training purchases, and the one purchase of each user that was withheld (the diagonal)."""
    row, column = np.indices((size, size))
    board = (row + column) % 2 == 0
    held = row == column
    return csr_matrix((board & ~held).astype(np.float32)), csr_matrix(held.astype(np.float32))


def drawn(users: int, items: int, share: float = 0.1, seed: int = 0, least: int = 1) -> csr_matrix:
    """Random purchases with popular and rare items; everybody has at least `least`."""
    rng = np.random.default_rng(seed)
    chance = share * 2 * rng.random(items) ** 2
    bought = rng.random((users, items)) < chance
    bought[np.arange(users)[:, None], rng.integers(0, items, (users, least))] = True
    return csr_matrix(bought.astype(np.float32))
