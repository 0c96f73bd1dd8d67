"""Lists from a written page, in Python: the numbers that the browser has, by the usual code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from medapps.model.rule import EPSILON
from medapps.recommend.blend import Weights
from medapps.recommend.lists import Scores, top_k
from medapps.recommend.parts.collaborative import Factoring, Factors, fold_in
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import Neighbours
from medapps.recommend.parts.spectral import Spectral
from medapps.serve.web.tables import Places, read_sparse, read_table
from medapps.store import read_manifest

KIND = "web"
_ALIKE = ("constant", "neighbours", "projection")
"""Parts that keep nothing of a user."""


@dataclass(frozen=True)
class Page:
    """A written page: its folder and what its manifest says."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Page:
        """The page in a folder, after its files were compared with its manifest."""
        return cls(Path(folder), dict(read_manifest(folder, kind=KIND).about))

    @property
    def purchases(self) -> csr_matrix:
        """(users of the page, items)."""
        return read_sparse(self.folder, self.about["purchases"], self.about["items"]["count"])

    def size(self, dim: int) -> dict[str, Any]:
        """What the page knows of one size."""
        return next(size for size in self.about["sizes"] if size["dim"] == dim)

    def lists(self, dim: int, rows: np.ndarray, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Items (n, k) and scores of rows of the page's users at one size."""
        size, purchases = self.size(dim), self.purchases
        in_graph = read_table(self.folder, size["users"], "in_graph").astype(bool)
        parts = [self._scores(size, name, purchases) for name in size["weights"]["names"]]
        weights = _weights(size, np.diff(purchases.indptr), in_graph)
        return top_k(parts, weights[rows], rows, purchases, k)

    def newcomer(self, dim: int, items: np.ndarray, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Items (k,) and scores of a new user with these purchases, not known to the graph."""
        size, count = self.size(dim), self.about["items"]["count"]
        ones, zeros = np.ones(len(items), np.float32), np.zeros(len(items), int)
        purchases = csr_matrix((ones, (zeros, items)), (1, count))
        parts = [self._new_scores(size, name, purchases) for name in size["weights"]["names"]]
        weights = _weights(size, np.array([len(items)]), np.zeros(1, bool))
        ids, scores = top_k(parts, weights, np.zeros(1, int), purchases, k)
        return ids[0], scores[0]

    def _scores(self, size: dict[str, Any], name: str, purchases: csr_matrix) -> Scores:
        """The scores of a part for rows of the page's users."""
        part: dict[str, Any] = size["parts"][name]
        if part["kind"] in _ALIKE:
            return _without_users(self.folder, part, purchases)
        users = read_table(self.folder, size["users"], f"{name}.users")
        return _with_users(self.folder, part, users)

    def _new_scores(self, size: dict[str, Any], name: str, purchases: csr_matrix) -> Scores:
        """The scores of a part for a user who is not in the page."""
        part: dict[str, Any] = size["parts"][name]
        arrays: Places = part["arrays"]
        if part["kind"] in _ALIKE:
            return _without_users(self.folder, part, purchases)
        items = read_table(self.folder, arrays, "items")
        if part["kind"] == "distance":
            return lambda rows: np.zeros((len(rows), len(items)), np.float32)
        if "fold" not in part:
            stranger = read_table(self.folder, arrays, "stranger")[None]
            return _with_users(self.folder, part, stranger)
        base = read_table(self.folder, arrays, "base")
        how = Factoring(factors=len(base), **part["fold"])
        folded = fold_in(Factors(base, items, base, None, how), purchases)
        return _with_users(self.folder, part, folded)


def _weights(size: dict[str, Any], purchases: np.ndarray, in_graph: np.ndarray) -> np.ndarray:
    """(n, parts): a distance counts for users of the graph; who is unknown gets what is popular."""
    told = size["weights"]
    names = np.array(told["names"])
    bounds, values, cold = (np.array(told[key]) for key in ("bounds", "values", "cold"))
    plain = Weights(tuple(names), bounds, values.reshape(-1, len(names)), cold, 0.0).of(purchases)
    graph = np.array([size["parts"][name]["kind"] == "distance" for name in names])
    weights = np.where(~in_graph[:, None] & graph, 0, plain)
    stranger = (weights.sum(1) == 0) | ((purchases == 0) & ~in_graph)
    return np.where(stranger[:, None], names == told["popular"], weights)


def _without_users(folder: Path, part: dict[str, Any], purchases: csr_matrix) -> Scores:
    arrays: Places = part["arrays"]
    if part["kind"] == "constant":
        values = read_table(folder, arrays, "items")
        return lambda rows: np.tile(values, (len(rows), 1))
    if part["kind"] == "projection":
        items, weight, few = (read_table(folder, arrays, n) for n in ("items", "weight", "filter"))
        return Spectral(items * weight[:, None], few, weight).part(purchases)
    return Neighbours(read_sparse(folder, arrays, purchases.shape[1])).part(purchases)


def _with_users(folder: Path, part: dict[str, Any], users: np.ndarray) -> Scores:
    arrays: Places = part["arrays"]
    items = read_table(folder, arrays, "items")
    if part["kind"] == "dot":
        return LowRank(users, items)
    if "stretch" in arrays:
        length = np.sqrt(np.square(items).sum(1, keepdims=True) + np.float32(EPSILON))
        items = items / length * read_table(folder, arrays, "stretch")
    unknown = read_table(folder, arrays, "unknown")
    measure = DISTANCES[part["measure"]]

    def scores(rows: np.ndarray) -> np.ndarray:
        far = measure(users[rows].astype(np.float64), items.astype(np.float64))
        out = (part["margin"] - part["scale"] * far).astype(np.float32)
        out[:, unknown] = out.min(1, keepdims=True)
        return out

    return scores


def _euclidean(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    square = np.square(users).sum(1)[:, None] + np.square(items).sum(1) - 2 * users @ items.T
    return np.sqrt(np.maximum(square, 0) + EPSILON)


def _product(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    return -users @ items.T


def _absolute(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    out = np.zeros((len(users), len(items)))
    for k in range(users.shape[1]):
        out += np.abs(users[:, k, None] - items[:, k])
    return out


def _modulus(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    out = np.zeros((len(users), len(items)))
    for k in range(0, users.shape[1], 2):
        real, imaginary = (users[:, j, None] - items[:, j] for j in (k, k + 1))
        out += np.sqrt(real * real + imaginary * imaginary + EPSILON)
    return out


DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "euclidean": _euclidean,
    "product": _product,
    "absolute": _absolute,
    "modulus": _modulus,
}
"""Distances of users (n, width) and items (m, width), (n, m)."""
