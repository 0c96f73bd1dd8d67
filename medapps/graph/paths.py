"""Short paths between a user and items of a graph, for a person who asks why."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from medapps.graph.graph import Graph


def path_words(graph: Graph, user: pl.Series, items: pl.Series) -> list[str]:
    """One path of at most three steps from the user to each item, in words; empty where none is.

    Of several paths the one through the rarest entities is told: it says most.
    """
    start = int(graph.entities.ids(user)[0])
    goals = graph.entities.ids(items)
    if start < 0:
        return [""] * len(goals)
    links = _links(graph)
    degree = np.diff(links.indptr)
    return [
        "" if goal < 0 else _words(graph, _path(links, degree, start, int(goal))) for goal in goals
    ]


def _links(graph: Graph) -> csr_matrix:
    """Which entities are linked, in either direction."""
    head, tail = np.asarray(graph.train[:, 0]), np.asarray(graph.train[:, 2])
    ones = np.ones(2 * len(head), bool)
    ends = np.concatenate([head, tail]), np.concatenate([tail, head])
    size = len(graph.entities)
    return csr_matrix((ones, ends), (size, size))


def _path(links: csr_matrix, degree: np.ndarray, start: int, goal: int) -> list[int]:
    near, far = links[start].indices, links[goal].indices
    if goal in near:
        return [start, goal]
    middle = np.intersect1d(near, far)
    if len(middle):
        return [start, int(middle[np.argmin(degree[middle])]), goal]
    reached = links[near]
    hit = np.isin(reached.indices, far)
    if not hit.any():
        return []
    first = np.repeat(near, np.diff(reached.indptr))[hit]
    second = reached.indices[hit]
    best = np.argmin(degree[first].astype(np.int64) * degree[second])
    return [start, int(first[best]), int(second[best]), goal]


def _words(graph: Graph, path: list[int]) -> str:
    """`user:1 -friend- user:7 -takes- item:3`."""
    if not path:
        return ""
    names = graph.entities.names(np.array(path)).cast(pl.String)
    words = [names[0]]
    for number, (a, b) in enumerate(pairwise(path)):
        h, t = graph.train[:, 0], graph.train[:, 2]
        rows = np.flatnonzero(((h == a) & (t == b)) | ((h == b) & (t == a)))
        relation = graph.relations.names(np.asarray(graph.train[rows[:1], 1]))[0]
        words += [f"-{relation}-", names[number + 1]]
    return " ".join(words)
