"""What a crop gives a recommender: the graph's own score of purchases, and service vectors."""

from __future__ import annotations

import numpy as np
import polars as pl

from medapps.crop.crop import Crop
from medapps.crop.service import Source, user_vectors
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.graph.read import TAKES
from medapps.recommend.parts.graph_score import GraphScore, service_of
from medapps.recommend.parts.service import Service
from medapps.recommend.problem import Problem


def users_of(source: Source | None) -> pl.Series | None:
    """The users of a graph, who may have no purchases, if the source tells them apart."""
    if not isinstance(source, Crop) or not len(source.users):
        return None
    return source.entity_ids.names(np.asarray(source.users))


def graph_score_of(source: Source | None, users: IdMap, items: IdMap) -> GraphScore | None:
    """The score of (user, takes, item), if the source knows that relation and some items."""
    if not isinstance(source, Crop) or source.relations is None or source.relation_ids is None:
        return None
    names = source.relation_ids.names()
    if TAKES not in names.to_list():
        return None
    bought, known_items = source.vectors(items.names())
    if not known_items.any():
        return None
    takers, known_users = source.vectors(users.names())
    relation = np.array(source.relations[names.to_list().index(TAKES)], np.float32)
    return GraphScore(takers, bought, relation, source.spec, known_users, known_items)


def graph_of(source: Source | None, problem: Problem) -> tuple[GraphScore | None, Service | None]:
    """What a source tells of the users and items of a problem.

    Refuses vectors that know no user with training purchases: nothing could be learned from them.
    """
    if source is None:
        return None, None
    graph = graph_score_of(source, problem.users, problem.items)
    if graph is not None:
        service = service_of(graph)
    else:
        found = user_vectors(source, problem.users)
        service = Service(found.values, found.known)
    buyers = np.diff(problem.train.indptr) > 0
    if not (service.known_users & buyers).any():
        raise MedappsError(
            f"There is nothing to learn from vectors: none of the {int(buyers.sum())} users with "
            "training interactions is in the graph.",
            fix="Check that both files name users the same way, or use --method none.",
        )
    tables = [service.users] if service.items is None else [service.users, service.items]
    if not all(np.isfinite(table).all() for table in tables):
        raise MedappsError(
            "A vector holds a number that is not finite.",
            fix="Train the embedding again with a smaller learning rate.",
        )
    return graph, service
