"""The edges of a synthetic social graph: drawn between users who stand close in one facet of life.

For each relation the users are put in a row: topics by a direction of their own, people of a topic
by another, with some disorder. A partner is found a heavy-tailed number of places away; or, where
a relation has hubs, among the most popular of the stretch. Out-degrees follow a heavy-tailed
activity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from medapps.graph.synth.planted import FACET_DIM, Latents, generator


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
