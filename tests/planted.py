"""Small planted data for the tasks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from medapps.crop.service import NamedVectors
from medapps.graph.ids import IdMap


@pytest.fixture(scope="session")
def names() -> pl.Series:
    return pl.Series("user", [f"user:{i:03d}" for i in range(300)])


@pytest.fixture(scope="session")
def planted(names: pl.Series) -> NamedVectors:
    """Vectors whose first two numbers decide labels and tastes; user:299 is not in the graph."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((299, 8)).astype(np.float32)
    return NamedVectors(IdMap.of(names[:299]), values * 5 + 2, "planted")


@pytest.fixture(scope="session")
def labels(names: pl.Series, planted: NamedVectors) -> pl.DataFrame:
    quadrant = ((planted.values - 2)[:, :2] > 0) @ np.array([1, 2])
    kinds = np.array(["north", "east", "south", "west"])[quadrant].tolist()
    return pl.DataFrame({"user": names, "place": [*kinds, "north"], "height": np.arange(300.0)})


@pytest.fixture(scope="session")
def interactions(names: pl.Series, planted: NamedVectors) -> pl.DataFrame:
    """Each user takes items of the group that its vector tells, and a few others."""
    rng = np.random.default_rng(1)
    group = ((planted.values - 2)[:, :2] > 0) @ np.array([1, 2])
    group = np.append(group, 0)
    rows = []
    for user, kind in enumerate(group):
        own = rng.choice(np.arange(kind * 15, kind * 15 + 15), 7, replace=False)
        for item in {*own.tolist(), int(rng.integers(60))}:
            rows.append((names[user], f"item:{item:02d}", int(rng.integers(1000))))
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
