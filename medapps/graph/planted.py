"""The hidden causes of a synthetic shop, and the labels, purchases and edges that follow.

A user stands in four facets of life (home, work, circle, taste), each a point in a small space
around one of many topics. Users belong to communities, and a community has a usual topic in each
facet. Labels look at these points and at chance, never at an edge.

Edges are drawn between users who stand close in one facet. For each relation the users are put in a
row: topics by a direction of their own, people of a topic by another, with some disorder. A partner
is found a heavy-tailed number of places away; or, where a relation has hubs, among the most popular
of the stretch. Out-degrees follow a heavy-tailed activity.
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


@dataclass(frozen=True)
class Relation:
    """One kind of edge."""

    name: str
    facet: int
    share: float
    """Part of all triples, relative to the others."""
    reach: float
    """Farthest partner: places in the row when above 1, else a part of all users."""
    forward: bool = False
    """Partners come later in the row only, so that the relation has a direction."""
    hubs: bool = False
    """Partners are the popular ones nearby."""
    everyone: bool = False
    """Each user has at least one such triple as head."""


RELATIONS = (
    Relation("chats_with", 2, 2.6, 0.02, everyone=True),
    Relation("classmate_of", 1, 0.8, 0.02),
    Relation("colleague_of", 1, 1.2, 0.01),
    Relation("family_of", 0, 0.8, 4),
    Relation("follows", 2, 1.4, 0.04, hubs=True),
    Relation("friend_of", 2, 1.4, 0.01),
    Relation("gifts_to", 0, 0.6, 0.01, forward=True),
    Relation("group_buys_with", 3, 1.2, 0.02),
    Relation("invited", 2, 0.5, 0.02, forward=True),
    Relation("likes_posts_of", 3, 1.2, 0.04, hubs=True),
    Relation("neighbour_of", 0, 1.0, 0.02),
    Relation("pays", 1, 0.6, 0.02, forward=True),
    Relation("recommends_to", 3, 1.0, 0.02),
    Relation("reports_to", 1, 0.5, 0.01, hubs=True),
    Relation("shares_address_with", 0, 0.8, 6),
)
DISORDER = 0.3
_TRIES = 200


def draw_edges(
    latents: Latents, triples: int, seed: int
) -> Iterator[tuple[Relation, np.ndarray, np.ndarray]]:
    """(relation, heads, tails) for each relation; `triples` distinct ones in all, no self loops."""
    users = len(latents)
    wanted = shares(triples)
    activity = np.cumsum(_heavy(generator(seed, 5), users))
    popularity = _heavy(generator(seed, 6), users)
    for number, (relation, count) in enumerate(zip(RELATIONS, wanted, strict=True)):
        rng = generator(seed, 7, number)
        row = _row(latents, relation, rng)
        if relation.hubs:
            row = _popular_first(row, popularity, _reach(relation, users))
        keys = _draw(relation, row, activity, count, rng)
        yield relation, (keys // users).astype(np.int32), (keys % users).astype(np.int32)


def shares(triples: int) -> list[int]:
    """How many of the triples each relation gets; the first takes what rounding leaves."""
    total = sum(relation.share for relation in RELATIONS)
    counts = [int(triples * relation.share / total) for relation in RELATIONS]
    counts[0] += triples - sum(counts)
    return counts


def _heavy(rng: np.random.Generator, users: int) -> np.ndarray:
    """Pareto weights with tail index 2, cut at a thousand; float64 (users,)."""
    return np.minimum((1 - rng.random(users)) ** -0.5, 1000.0)


def _row(latents: Latents, relation: Relation, rng: np.random.Generator) -> np.ndarray:
    """Users in the order in which this relation sees them, int32 (users,)."""
    centre = latents.centre[relation.facet]
    along, within = rng.standard_normal((2, FACET_DIM)).astype(np.float32)
    topic = latents.topic[relation.facet]
    rank = np.argsort(np.argsort(centre @ along, kind="stable"))[topic]
    inside = (latents.facet(relation.facet) - centre[topic]) @ within
    inside /= np.float32(np.linalg.norm(within) * 0.45)
    inside += np.float32(DISORDER) * rng.standard_normal(len(latents), np.float32)
    # topics are whole steps, the place within a topic a fraction of a step
    key = rank.astype(np.float32) + np.float32(1 / 16) * np.clip(inside, -7.5, 7.5)
    return np.argsort(key, kind="stable").astype(np.int32)


def _reach(relation: Relation, users: int) -> int:
    reach = relation.reach if relation.reach > 1 else max(relation.reach * users, 10)
    return int(min(reach, users // 4))


def _popular_first(row: np.ndarray, popularity: np.ndarray, stretch: int) -> np.ndarray:
    """The same row, with each stretch of it in order of falling popularity."""
    block = np.arange(len(row)) // stretch
    return row[np.lexsort((-popularity[row], block))]


def _draw(
    relation: Relation,
    row: np.ndarray,
    activity: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """`count` distinct keys head * users + tail, ascending int64."""
    users = len(row)
    place = np.empty(users, np.int32)
    place[row] = np.arange(users, dtype=np.int32)
    keys = np.empty(0, np.int64)
    fixed = np.empty(0, np.int64)
    if relation.everyone:
        fixed = _pairs(relation, row, place, np.arange(users, dtype=np.int32), rng)
        assert len(fixed) == users and not relation.hubs
    for _ in range(_TRIES):
        missing = count - len(fixed) - len(keys)
        if missing <= 0:
            break
        drawn = rng.random(missing + missing // 8 + 16) * activity[-1]
        heads = np.minimum(np.searchsorted(activity, drawn), users - 1).astype(np.int32)
        keys = np.sort(np.concatenate([keys, _pairs(relation, row, place, heads, rng)]))
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
        if len(fixed):
            keys = keys[~np.isin(keys, fixed, assume_unique=True)]
    surplus = len(fixed) + len(keys) - count
    assert 0 <= surplus <= len(keys), f"{relation.name}: {len(keys)} of {count} edges"
    if surplus:
        keys = np.delete(keys, rng.choice(len(keys), surplus, replace=False))
    return np.sort(np.concatenate([fixed, keys]))


def _pairs(
    relation: Relation,
    row: np.ndarray,
    place: np.ndarray,
    heads: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """One partner for each head, as keys head * users + tail; a hub never picks itself."""
    users, reach = len(row), _reach(relation, len(row))
    here = place[heads].astype(np.int64)
    if relation.hubs:
        start = here // reach * reach
        size = np.minimum(users - start, reach)
        there = start + (size * rng.random(len(heads)) ** 3).astype(np.int64)
        heads, there = heads[there != here], there[there != here]
    else:
        step = np.exp(rng.random(len(heads)) * np.log(reach + 1)).astype(np.int64)  # 1 ... reach
        sign = 1 if relation.forward else rng.integers(0, 2, len(heads)) * 2 - 1
        there = here + sign * step
        there = np.where((there < 0) | (there >= users), here - sign * step, there)
    return heads.astype(np.int64) * users + row[there]
