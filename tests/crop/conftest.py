"""A small crop whose numbers are known."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from medapps.crop.crop import Crop
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec


def make_crop(
    n: int = 200, dim: int = 10, *, integers: bool = False, seed: int = 0, norm: str = "l2"
) -> Crop:
    """Random vectors; names u000... are users, i000... items."""
    rng = np.random.default_rng(seed)
    names = (
        pl.Series(np.arange(n) * 7)
        if integers
        else pl.Series([f"{'iu'[i % 2]}{i:05d}é" for i in range(n)])
    )
    ids = IdMap.of(names)
    users = np.flatnonzero(
        ids.names().to_numpy() % 2 == 1 if integers else ids.names().str.starts_with("u").to_numpy()
    )
    return Crop(
        entities=rng.normal(size=(n, dim)).astype(np.float32),
        entity_ids=ids,
        dim=dim,
        method="med",
        spec=ScoreSpec(norm=norm, scale=1.5, margin=5.0),
        relations=rng.normal(size=(4, dim)).astype(np.float32),
        relation_ids=IdMap.of(pl.Series([f"r{i}" for i in range(4)])),
        users=users.astype(np.int32),
        about={"run_id": "abc", "dims": [5, 10]},
    )


@pytest.fixture
def crop() -> Crop:
    return make_crop()
