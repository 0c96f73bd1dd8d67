"""Mixture: the parts of a recommender, each with its settings and the weights of their blend.

Everything is chosen on held-out purchases: settings of a part by `tune`, weights by `blend`. A part
that does not help has no weight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
from scipy.sparse import csr_matrix, diags

from medapps.recommend.blend import Weights, choose_weights, gather
from medapps.recommend.config import PartName
from medapps.recommend.lists import Scores, evaluate, top_k
from medapps.recommend.parts.collaborative import Factors, fold_in
from medapps.recommend.parts.graph_score import GraphScore, service_of
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import Neighbours
from medapps.recommend.parts.service import Service
from medapps.recommend.parts.spectral import Spectral
from medapps.recommend.tune import Tuner

PARTS: tuple[str, ...] = get_args(PartName)
PLAIN = ("collaborative", "neighbours", "spectral", "popularity")
"""Parts that need no graph."""
COLD = {"graph": 0.9, "service": 0.1}
"""Weights of users without purchases where no cold user validates."""


@dataclass(frozen=True)
class Mixture:
    """Trained parts by name and their weights."""

    train: csr_matrix
    collaborative: Factors | None
    neighbours: Neighbours | None
    graph: GraphScore | None
    service: LowRank | None
    gmf: tuple[Factors, np.ndarray] | None
    """A factorisation with injected service vectors, and those of the users."""
    spectral: Spectral | None
    popularity: np.ndarray  # (items,) float32
    known_users: np.ndarray  # (users,) bool: the graph knows them
    weights: Weights
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def parts(self, purchases: csr_matrix) -> list[Scores]:
        """Scores of each part in `weights.names` for users who have these purchases."""
        made = self._own if purchases is self.train else bind(self, purchases)
        return [made[name] for name in self.weights.names]

    @cached_property
    def _own(self) -> dict[str, Scores]:
        """Those of the users of the training, kept: a server asks for one list after another."""
        return bind(self, self.train)

    def recommend(
        self, users: np.ndarray, purchases: csr_matrix, k: int = 10
    ) -> tuple[np.ndarray, np.ndarray]:
        """Items int32 (len(users), k) and scores of users (rows of `purchases`), best first."""
        return top_k(self.parts(purchases), self.weights_of(users, purchases), users, purchases, k)

    def weights_of(self, users: np.ndarray, purchases: csr_matrix) -> np.ndarray:
        """(len(users), parts): popularity alone for users of whom nothing is known."""
        count, names = np.diff(purchases.indptr)[users], np.array(self.weights.names)
        unknown = ~self.known_users[users, None]
        weights = np.where(unknown & (names == "graph"), 0, self.weights.of(count))
        stranger = (weights.sum(1, keepdims=True) == 0) | ((count[:, None] == 0) & unknown)
        return np.where(stranger, names == "popularity", weights)


def folded(model: Mixture, purchases: csr_matrix) -> Mixture:
    """The same for users who have these purchases, with their vectors solved once and kept."""
    alone, joint = model.collaborative, model.gmf
    if alone is not None:
        alone = replace(alone, users=fold_in(alone, purchases))
    if joint is not None:
        joint = replace(joint[0], users=fold_in(joint[0], purchases, joint[1])), joint[1]
    return replace(model, train=purchases, collaborative=alone, gmf=joint)


def bind(model: Mixture, purchases: csr_matrix) -> dict[str, Scores]:
    """The score functions of all parts, with users folded in once; rows are those of training."""
    ones = np.ones((purchases.shape[0], 1), np.float32)
    made: dict[str, Scores] = {"popularity": LowRank(ones, model.popularity[:, None])}
    if model.collaborative is not None:
        factors = model.collaborative
        vectors = factors.users if purchases is model.train else fold_in(factors, purchases)
        made["collaborative"] = LowRank(vectors, factors.items)
    if model.gmf is not None:
        joint, service = model.gmf
        same = purchases is model.train
        vectors = joint.users if same else fold_in(joint, purchases, service)
        made["gmf"] = LowRank(vectors, joint.items)
    if model.neighbours is not None:
        made["neighbours"] = model.neighbours.part(purchases)
    if model.spectral is not None:
        made["spectral"] = model.spectral.part(purchases)
    if model.graph is not None:
        made["graph"] = model.graph.scores
    if model.service is not None:
        made["service"] = model.service
    return made


def fit(
    train: csr_matrix,
    valid: csr_matrix,
    graph: GraphScore | None = None,
    service: Service | None = None,
    cold_valid: csr_matrix | None = None,
    parts: Sequence[str] = PARTS,
    given: Mixture | None = None,
    seed: int = 0,
) -> Mixture:
    """Train and tune the parts, then choose their weights; `given` has parts without a graph.

    `given` saves training them again when only the graph's vectors change.
    """
    has = np.diff(train.indptr) > 0
    valid, first = _rows(valid, has), _rows(valid, ~has)
    if first.nnz:  # first purchases, where the split is by time
        cold_valid = first if cold_valid is None else csr_matrix(cold_valid + first)
    tuner = Tuner(train, valid, seed)
    collaborative, near, spectral = None, None, None
    if "collaborative" in parts:
        collaborative = given.collaborative if given else tuner.collaborative()
    if "neighbours" in parts:
        near = given.neighbours if given else tuner.neighbours()
    if "spectral" in parts:
        spectral = given.spectral if given else tuner.spectral()
    if service is None and graph is not None:
        service = service_of(graph)
    mapped, gmf = None, None
    if service is not None:
        mapped = tuner.service(service, cold_valid) if "service" in parts else None
        gmf = tuner.injected(service) if "gmf" in parts else None
    known = np.zeros(train.shape[0], bool) if service is None else service.known_users
    empty = Weights((), np.empty(0), np.empty((1, 0)), np.empty(0), 0.0)
    settings = (given.settings if given else {}) | tuner.settings
    model = Mixture(
        train=train,
        collaborative=collaborative,
        neighbours=near,
        graph=graph if "graph" in parts else None,
        service=mapped,
        gmf=gmf,
        spectral=spectral,
        popularity=popularity(train),
        known_users=known,
        weights=empty,
        settings=settings,
    )
    began = time.perf_counter()
    weights = _weights(model, valid, cold_valid)
    tuner.seconds["weights"] = time.perf_counter() - began
    seconds = (given.seconds if given else {}) | tuner.seconds
    return replace(model, weights=weights, seconds=seconds)


def graph_alone(train: csr_matrix, valid: csr_matrix, graph: GraphScore) -> Mixture:
    """The graph's score and nothing else; whom it does not know gets what is popular."""
    found = evaluate(graph.scores, valid, train)["ndcg_at_10"]
    weights = Weights(
        ("graph", "popularity"),
        np.empty(0, int),
        np.array([[1.0, 0.0]]),
        np.array([1.0, 0.0]),
        float(found.mean()) if len(found) else 0.0,
    )
    return Mixture(
        train=train,
        collaborative=None,
        neighbours=None,
        graph=graph,
        service=None,
        gmf=None,
        spectral=None,
        popularity=popularity(train),
        known_users=graph.known_users,
        weights=weights,
    )


def popularity(train: csr_matrix) -> np.ndarray:
    """float32 (items,): the logarithm of how often an item was bought."""
    return np.log1p(np.bincount(train.indices, minlength=train.shape[1])).astype(np.float32)


def _rows(matrix: csr_matrix, chosen: np.ndarray) -> csr_matrix:
    """The same with every other row empty."""
    kept = csr_matrix(diags(chosen.astype(np.float32)) @ matrix, dtype=np.float32)
    kept.eliminate_zeros()
    return kept


def _weights(model: Mixture, valid: csr_matrix, cold_valid: csr_matrix | None) -> Weights:
    made = bind(model, model.train)
    names = [name for name in PARTS if name in made]
    functions = [made[name] for name in names]
    candidates = gather(functions, valid, model.train)
    cold = None
    if cold_valid is not None and cold_valid.nnz:
        cold = gather(functions, cold_valid, model.train)
    rule = {name: weight for name, weight in COLD.items() if name in made} or {"popularity": 1.0}
    return choose_weights(names, candidates, cold, rule, plain=PLAIN)
