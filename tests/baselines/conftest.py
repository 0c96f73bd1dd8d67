"""A small graph with a structure that a translation can learn, and a teacher trained on it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from medapps.baselines.config import BaselineConfig, SearchConfig
from medapps.baselines.registry import make_baseline
from medapps.crop.crop import Crop
from medapps.graph.graph import Graph
from medapps.graph.ids import IdMap
from medapps.train.config import MedConfig

OFF = BaselineConfig(search=SearchConfig(when="off"))


def make_graph(n: int = 150, relations: int = 4, seed: int = 0, valid: int = 100) -> Graph:
    """Each relation leads from a point of the plane to the points nearest to a shifted place."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 3))
    shifts = rng.normal(size=(relations, 3))
    triples = []
    for r in range(relations):
        away = ((points[:, None] + shifts[r] - points) ** 2).sum(2)
        tails = np.argsort(away, 1)[:, :4]
        triples.append(np.stack([np.repeat(np.arange(n), 4), np.full(4 * n, r), tails.ravel()], 1))
    every = rng.permutation(np.concatenate(triples)).astype(np.int32)
    return Graph(
        entities=IdMap.of(pl.Series([f"e{i:04d}" for i in range(n)])),
        relations=IdMap.of(pl.Series([f"r{i}" for i in range(relations)])),
        train=every[2 * valid :],
        valid=every[:valid],
        test=every[valid : 2 * valid],
        users=np.arange(0, n, 3, dtype=np.int32),
        name="plane",
        digest=f"plane{n}{relations}{seed}{valid}",
    )


@pytest.fixture(scope="session")
def graph() -> Graph:
    return make_graph()


def short(epochs: int = 3, dims: tuple[int, ...] = (4, 16)) -> MedConfig:
    """Settings under which the graph above is learned in some ten epochs."""
    return MedConfig(
        dims=dims, epochs=epochs, batch=128, chunk=64, negatives=32, threads=1, every=100,
        lr=0.3, margin=2.0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def train() -> MedConfig:
    return short()


@pytest.fixture(scope="session")
def teacher(graph: Graph) -> Crop:
    return make_baseline("dt", graph, 16, OFF, train=short(10), seed=1)
