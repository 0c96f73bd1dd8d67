"""A small shop with its graph's vectors: users take what is near them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from medapps.crop.crop import Crop
from medapps.graph.ids import IdMap
from medapps.graph.read import TAKES
from medapps.model.rule import ScoreSpec

USERS, ITEMS, DIM = 150, 60, 4


@dataclass(frozen=True)
class World:
    """Purchases, and a crop that knows all items and users, two of them without purchases."""

    bought: pl.DataFrame
    crop: Crop


def world(seed: int = 0, noise: float = 0.3, integers: bool = False) -> World:
    """Each user takes 3 to 8 items; the vectors are the tastes behind them and noise."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.standard_normal((USERS + 2, DIM)), rng.standard_normal((ITEMS, DIM))
    rows = []
    for user in range(USERS):
        chance = np.exp(-2 * np.linalg.norm(taste[user] - kind, axis=1))
        count = rng.integers(3, 9)
        items = rng.choice(ITEMS, count, replace=False, p=chance / chance.sum())
        rows += [(user, int(item), time) for time, item in enumerate(items)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    names = [f"item:{i:02d}" for i in range(ITEMS)]
    names += [f"user:{u:03d}" for u in range(USERS)] + ["user:nobody", "user:none"]
    ids: pl.Series = pl.Series(names)
    if integers:
        frame = frame.with_columns(pl.col("user") + 1000)
        ids = pl.Series([*range(ITEMS), *range(1000, 1000 + USERS + 2)])
    else:
        frame = frame.with_columns(
            user=pl.format("user:{}", pl.col("user").cast(pl.String).str.zfill(3)),
            item=pl.format("item:{}", pl.col("item").cast(pl.String).str.zfill(2)),
        )
    vectors = np.concatenate([kind, taste]) + noise * rng.standard_normal((len(ids), DIM))
    step = rng.standard_normal(DIM)
    vectors[:ITEMS] += step  # an item lies where `takes` leads to
    crop = Crop(
        vectors.astype(np.float32),
        IdMap.of(ids),
        DIM,
        "med",
        ScoreSpec(),
        relations=np.stack([rng.standard_normal(DIM), step]).astype(np.float32),
        relation_ids=IdMap.of(pl.Series(["knows", TAKES])),
        users=np.arange(ITEMS, len(ids), dtype=np.int32),
    )
    return World(frame, crop)
