"""Small graphs for the training tests."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap


@pytest.fixture(autouse=True)
def _one_thread():
    """Two cores are shared by everything; one thread per test is quickest and deterministic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


MOVES = [(0, 1, 0), (1, 0, 1), (2, 1, 1), (3, 2, 0), (4, 0, 2), (5, 1, 2), (5, 2, 1)]
"""relation, dx, dy; the last relation has two answers."""


def make_graph(side: int = 8, seed: int = 0) -> Graph:
    """Entities are the points of a square grid, relations are moves on it: TransE can learn it."""
    rng = np.random.default_rng(seed)
    x, y = np.divmod(np.arange(side * side), side)
    rows = []
    for relation, dx, dy in MOVES:
        inside = (x + dx < side) & (y + dy < side)
        tail = (x + dx) * side + y + dy
        rows.append(
            np.stack([np.flatnonzero(inside), np.full(inside.sum(), relation), tail[inside]], 1)
        )
    triples = rng.permutation(np.concatenate(rows)).astype(np.int32)
    held = len(triples) // 10
    return Graph(
        entities=IdMap.of(pl.Series(np.arange(side * side))),
        relations=IdMap.of(pl.Series([f"move{i}" for i in range(6)])),
        train=triples[2 * held :],
        valid=triples[:held],
        test=triples[held : 2 * held],
        users=np.arange(0, side * side, 2, dtype=np.int32),
        name="grid",
    )


@pytest.fixture
def graph() -> Graph:
    return make_graph()
