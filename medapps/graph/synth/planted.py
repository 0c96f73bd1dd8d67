"""The hidden causes of a synthetic shop, and the labels and purchases that follow from them.

A user stands in four facets of life (home, work, circle, taste), each a point in a small space
around one of many topics. Users belong to communities, and a community has a usual topic in each
facet. Labels look at these points and at chance, never at an edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

FACETS = ("home", "work", "circle", "taste")
FACET_DIM = 4
WIDTH = len(FACETS) * FACET_DIM
NOISE = 0.45
LOYALTY = 0.8
"""Chance that a user's topic in a facet is the usual one of the user's community."""
_CHUNK = 1 << 18
EAGERNESS = 2.5
"""How strongly a place draws a user to a shelf; 0 would be chance."""
START, YEAR = 1_735_689_600, 365 * 86_400
_BUYERS = 1 << 15


@dataclass(frozen=True)
class Latents:
    """Where users stand: `topic` (facets, users) uint8 and `place` (users, WIDTH) float32."""

    topic: np.ndarray
    place: np.ndarray
    centre: np.ndarray
    """(facets, topics, FACET_DIM) float32: the middle of every topic."""

    def __len__(self) -> int:
        return len(self.place)

    def facet(self, facet: int) -> np.ndarray:
        """(users, FACET_DIM): the places in one facet, a view."""
        return self.place[:, facet * FACET_DIM : (facet + 1) * FACET_DIM]


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """An independent stream for every purpose and piece of work under one seed."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *purpose])))


def draw_latents(users: int, topics: int, seed: int) -> Latents:
    """Communities of uneven sizes, the topics of their members, and places around the topics."""
    facets = len(FACETS)
    rng = generator(seed, 1)
    centre = rng.standard_normal((facets, topics, FACET_DIM)).astype(np.float32)
    usual = np.stack([rng.permutation(topics) for _ in FACETS])  # (facets, communities)
    weight = 1 / (np.arange(topics) + 4.0)
    share = weight / weight.sum()
    topic = np.empty((facets, users), np.uint8)
    place = np.empty((users, WIDTH), np.float32)
    for start in range(0, users, _CHUNK):
        stop = min(start + _CHUNK, users)
        rng = generator(seed, 2, start)
        community = rng.choice(topics, stop - start, p=share)
        for facet in range(facets):
            loyal = rng.random(stop - start) < LOYALTY
            other = rng.choice(topics, stop - start, p=share)
            topic[facet, start:stop] = usual[facet, np.where(loyal, community, other)]
        noise = rng.standard_normal((stop - start, WIDTH), np.float32)
        middle = [centre[facet, topic[facet, start:stop]] for facet in range(facets)]
        place[start:stop] = np.concatenate(middle, axis=1) + np.float32(NOISE) * noise
    return Latents(topic, place, centre)


@dataclass(frozen=True)
class Label:
    """A label column: which facets it looks at, and how much chance blurs it."""

    name: str
    classes: tuple[str, ...]
    facets: tuple[int, ...]
    chance: float
    """Standard deviation of the blur, against a signal of 1."""


LABELS = (
    Label("gender", ("female", "male"), (2, 3), 0.25),
    Label("life_stage", ("student", "single", "family", "senior"), (0, 1), 0.35),
    Label(
        "segment",
        (
            *("bargain", "beauty", "electronics", "fashion", "gourmet"),
            *("home", "luxury", "outdoor", "parents", "sports"),
        ),
        (0, 1, 2, 3),
        0.5,
    ),
)


def draw_labels(latents: Latents, seed: int) -> dict[str, pl.Series]:
    """One class per user and label: the largest of one linear score per class plus chance."""
    columns = {}
    for number, label in enumerate(LABELS):
        rng = generator(seed, 3, number)
        seen = np.repeat(np.isin(np.arange(len(FACETS)), label.facets), FACET_DIM)
        weights = rng.standard_normal((WIDTH, len(label.classes))) * seen[:, None]
        weights -= weights.mean(1, keepdims=True)
        weights /= np.sqrt(
            (weights**2).sum(0) * (1 + NOISE**2)
        )  # each score has about unit variance
        weights = weights.astype(np.float32)
        chosen = np.empty(len(latents), np.uint8)
        for start in range(0, len(latents), _CHUNK):
            rng = generator(seed, 4, number, start)
            scores = latents.place[start : start + _CHUNK] @ weights
            scores += np.float32(label.chance) * rng.standard_normal(scores.shape, np.float32)
            chosen[start : start + _CHUNK] = scores.argmax(1)
        columns[label.name] = pl.Series(label.classes, dtype=pl.String).gather(chosen)
    return columns


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
    for start in range(0, len(latents), _BUYERS):
        rng = generator(seed, 9, start)
        place = latents.place[start : start + _BUYERS]
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
