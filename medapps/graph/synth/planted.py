"""The hidden causes of a synthetic shop: where each user stands, and the labels that follow.

A user stands in four facets of life (home, work, circle, taste), each a point in a small space
around one of many topics. Users belong to communities, and a community has a usual topic in each
facet. Labels look at these points and at chance, never at an edge.
"""

from __future__ import annotations

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
