"""A small shop whose recommenders give weight to every part, in two sizes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from medapps.crop.crop import Crop
from medapps.graph.config import SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.split import split_purchases
from medapps.recommend.blend import Weights
from medapps.recommend.mixture import fit, folded
from medapps.recommend.problem import problem_of
from medapps.recommend.recommender import Recommender
from medapps.recommend.vectors import graph_of, users_of
from medapps.serve.web.find import Found, Sized
from tests.recommend.worlds import DIM, ITEMS, World, world

NODE_LISTS = Path(__file__).with_name("lists.js")
QUALITY = {"ndcg_at_10": 0.25, "recall_at_10": 0.5, "hit_at_10": 0.5}


@dataclass(frozen=True)
class Shop:
    """Recommenders of 2 and 4 numbers, and some users who differ in what is known of them."""

    found: Found
    with_both: str
    """Purchases and graph."""
    in_graph_alone: str
    bought_alone: str
    """Purchases, but the graph does not know this user."""

    @property
    def sizes(self) -> dict[int, Recommender]:
        return {size.model.dim: size.model for size in self.found.sizes}

    def rows(self, *names: str) -> list[int]:
        """Rows of users by name, whatever the type of ids."""
        known = self.found.sizes[0].model.users.names().cast(pl.String).to_list()
        return [known.index(name) for name in names]


@cache
def shop(integers: bool = False) -> Shop:
    """Each part has weight, other weights for few, some and many purchases, and cold ones."""
    made = world(3, integers=integers)
    gone = 1007 if integers else "user:007"
    crop = without(made, gone)
    split = split_purchases(made.bought, SplitConfig(cold_share=0.1))
    sizes = [Sized(recommender(prefix(crop, dim), split), "", QUALITY) for dim in (2, DIM)]
    model = sizes[0].model
    bought = np.diff(model.purchases.indptr) > 0
    names = model.users.names().cast(pl.String).to_list()
    both = next(n for n, has in zip(names, bought, strict=True) if has and n != str(gone))
    alone = names[int(np.flatnonzero(~bought)[0])]
    titles = [None if i == 2 else f"<b>Thing</b> {i} & more" for i in range(ITEMS)]
    found = Found(sizes, "world", pl.Series("title", titles))
    return Shop(found, both, alone, str(gone))


def without(made: World, user: Any) -> Crop:
    """The crop without a user."""
    crop = made.crop
    names = crop.entity_ids.names()
    row = names.to_list().index(user)
    ids = IdMap.of(names.filter(names != user))
    entities = np.delete(crop.rows(slice(None)), row, axis=0)
    users = np.arange(ITEMS, len(ids), dtype=np.int32)
    return replace(crop, entities=entities, entity_ids=ids, users=users)


def prefix(crop: Crop, dim: int) -> Crop:
    """The first numbers of every vector."""
    assert crop.relations is not None
    entities, relations = (
        np.ascontiguousarray(x[:, :dim]) for x in (crop.entities, crop.relations)
    )
    return replace(crop, entities=entities, relations=relations, dim=dim)


def recommender(crop: Crop, split: Any) -> Recommender:
    """All parts, trained, with weights that leave none out."""
    problem = problem_of(split, users_of(crop))
    graph, service = graph_of(crop, problem)
    model = fit(problem.train, problem.valid, graph, service)
    names = model.weights.names
    values = np.random.default_rng(crop.dim).uniform(0.1, 1, (3, len(names)))
    cold = np.array([{"graph": 0.7, "service": 0.3}.get(name, 0.0) for name in names])
    weights = Weights(names, np.array([3, 5]), values / values.sum(1, keepdims=True), cold, 0.0)
    model = folded(replace(model, weights=weights), problem.known)
    return Recommender(
        model, problem.users, problem.items, problem.known, "ncf", crop.method, crop.dim
    )


def in_node(folder: Path, asked: list[dict[str, Any]], k: int = 10) -> list[dict[str, Any]]:
    """Lists by the engine of a page."""
    given = json.dumps({"folder": str(folder), "k": k, "asked": asked})
    done = subprocess.run(
        ["node", str(NODE_LISTS), given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_same(
    items: list[Any], scores: list[float], true_items: list[Any], true_scores: list[float]
) -> None:
    """The same items in the same order, scores to 1e-3; equal scores (1e-5) may change places."""
    np.testing.assert_allclose(scores, true_scores, rtol=0, atol=1e-3)
    known = dict(zip(true_items, true_scores, strict=True))
    for item, true, score in zip(items, true_items, true_scores, strict=True):
        assert item == true or abs(known.get(item, -np.inf) - score) < 1e-5, (items, true_items)
