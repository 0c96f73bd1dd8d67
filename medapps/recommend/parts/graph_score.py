"""The embedding's own score of (user, takes, item), for a block of users against all items."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from medapps.model.rule import EPSILON, ScoreSpec
from medapps.model.rules import RULES, make_scorer
from medapps.recommend.parts.service import Service

if TYPE_CHECKING:
    import torch

    from medapps.model.rule import Scorer

FLOOR = np.float32(1e-4)
"""Least square of a distance: smaller ones are rounding, as in the kernel."""
TILE = 4096
"""Items that are scored at a time, so that the steps of a score stay in the cache."""


@dataclass(frozen=True)
class GraphScore:
    """Vectors of users and items as rows of a task, and the relation between them.

    Rows that the graph does not know are zeros and not `known`: such users and items have no score.
    """

    users: np.ndarray  # (users, width) float32
    items: np.ndarray  # (items, width) float32
    relation: np.ndarray  # (relation width,) float32
    spec: ScoreSpec
    known_users: np.ndarray  # (users,) bool
    known_items: np.ndarray  # (items,) bool

    @cached_property
    def scorer(self) -> Scorer:
        return make_scorer(self.spec.scorer, self.spec.norm)

    def scores(self, users: np.ndarray) -> np.ndarray:
        """float32 (len(users), items); an item that the graph does not know has the least score."""
        out = np.empty((len(users), len(self.items)), np.float32)
        if self.spec.scorer == "transe":
            self._euclidean(users, out)
        else:
            self._by_kernel(users, out)
        if not self.known_items.all():
            out[:, ~self.known_items] = out.min(axis=1, keepdims=True)
        out[~self.known_users[users]] = 0
        return out

    def _euclidean(self, users: np.ndarray, out: np.ndarray) -> None:
        """What TransE's kernel computes, without torch: a server has no other use for it."""
        query = self.users[users] + self.relation
        own = np.einsum("ij,ij->i", query, query)[:, None] + np.float32(EPSILON)
        for begin in range(0, len(self.items), TILE):
            part = slice(begin, begin + TILE)
            square = (-2 * query) @ self.items[part].T
            square += self._squares[part]
            square += own
            np.sqrt(np.maximum(square, FLOOR, out=square), out=square)
            square *= -self.spec.scale
            out[:, part] = square
        out += np.float32(self.spec.margin)

    @cached_property
    def _squares(self) -> np.ndarray:
        """(items,) squared lengths."""
        return np.einsum("ij,ij->i", self.items, self.items)

    def _by_kernel(self, users: np.ndarray, out: np.ndarray) -> None:
        import torch

        query = self.queries(users)
        for begin in range(0, len(self.items), TILE):
            items = torch.from_numpy(self.items[begin : begin + TILE])
            distance = torch.empty(1, len(users), len(items))
            self.scorer.pairs(query, items, (0, items.shape[1]), distance)
            view = torch.from_numpy(out)[:, begin : begin + TILE]
            torch.mul(distance[0], -self.spec.scale, out=view).add_(self.spec.margin)

    def queries(self, users: np.ndarray) -> torch.Tensor:
        """(len(users), query width): where `takes` leads from each user."""
        import torch

        relation = torch.from_numpy(self.relation).expand(len(users), -1)
        return self.scorer.query(torch.from_numpy(self.users[users]), relation, "tail")


def graph_score(
    entities: np.ndarray,  # (entities, width) float32
    relation: np.ndarray,  # (relation width,) of `takes`
    spec: ScoreSpec,
    users: np.ndarray,  # (users,) row of each user in entities, -1 where it has none
    items: np.ndarray,  # (items,) likewise
    dim: int | None = None,
) -> GraphScore:
    """Gather the rows of a task; with `dim` only that prefix, scored as `spec` says."""
    entity, link, _ = RULES[spec.scorer].REALS
    width = entities.shape[1] if dim is None else dim * entity
    reach = len(relation) if dim is None else dim * link
    return GraphScore(
        _rows(entities, users, width),
        _rows(entities, items, width),
        np.array(relation[:reach], np.float32),
        spec,
        users >= 0,
        items >= 0,
    )


def _rows(table: np.ndarray, ids: np.ndarray, width: int) -> np.ndarray:
    out = np.zeros((len(ids), width), np.float32)
    out[ids >= 0] = table[ids[ids >= 0], :width]
    return out


def service_of(graph: GraphScore) -> Service:
    """Service vectors of users and items.

    A user's is its query, the vector at which `takes` expects items (h + r for TransE), as in PKGM;
    an item's is its own vector.
    """
    query = graph.queries(np.arange(len(graph.users))).numpy()
    users = np.where(graph.known_users[:, None], query, np.float32(0))
    return Service(users, graph.known_users, graph.items, graph.known_items)
