"""The purchases of a synthetic shop: what a user buys follows from where the user stands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from medapps.graph.synth.planted import FACET_DIM, FACETS, WIDTH, Latents, generator

EAGERNESS = 2.5
"""How strongly a place draws a user to a shelf; 0 would be chance."""
START, YEAR = 1_735_689_600, 365 * 86_400
_CHUNK = 1 << 15


def draw_purchases(
    latents: Latents, items: int, shelves: int, fewest: int, mean: float, seed: int
) -> Iterator[pl.DataFrame]:
    """Frames of user (number), item (number), timestamp (seconds); distinct pairs, by user.

    Items stand on shelves of equal size. A user chooses a shelf by taste and, less, by the other
    facets, then an item of the shelf by its popularity.
    """
    rng = generator(seed, 8)
    weight = np.ones(len(FACETS))
    weight[:-1] = 0.4
    pull = rng.standard_normal((WIDTH, shelves)) * np.repeat(weight, FACET_DIM)[:, None]
    pull *= EAGERNESS / np.sqrt((pull**2).sum(0))
    pull = pull.astype(np.float32)
    size = items // shelves  # the last shelf takes the rest
    for start in range(0, len(latents), _CHUNK):
        rng = generator(seed, 9, start)
        place = latents.place[start : start + _CHUNK]
        scores = place @ pull
        chance = np.cumsum(np.exp(scores - scores.max(1, keepdims=True)), axis=1)
        count = fewest + rng.geometric(1 / (mean - fewest + 1), len(place)) - 1
        buyer = np.repeat(np.arange(len(place)), np.minimum(count, items // 4))
        level = rng.random(len(buyer), np.float32) * chance[buyer, -1]
        shelf = np.minimum(_first_above(chance, buyer, level), shelves - 1)
        room = np.where(shelf == shelves - 1, items - size * (shelves - 1), size)
        item = shelf * size + (room * rng.random(len(buyer)) ** 2.5).astype(np.int64)
        time = START + rng.integers(0, YEAR, len(buyer))
        keys, first = np.unique(buyer * items + item, return_index=True)
        yield pl.DataFrame(
            {"user": start + keys // items, "item": keys % items, "timestamp": time[first]}
        )


def _first_above(chance: np.ndarray, buyer: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Column of the first value above `level` in each buyer's ascending row, by bisection."""
    low = np.zeros(len(buyer), np.int64)
    high = np.full(len(buyer), chance.shape[1], np.int64)
    while (low < high).any():
        middle = np.minimum((low + high) // 2, chance.shape[1] - 1)
        below = (low < high) & (chance[buyer, middle] <= level)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    return low
