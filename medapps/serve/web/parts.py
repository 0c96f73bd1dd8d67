"""The parts of a recommender as plain arrays, in five kinds that a page can compute.

    dot         users[u] . items[i]; new users by `fold` (a factorisation), else by `stranger`
    distance    margin - scale * D(users[u], items[i]); users are queries, D is the `measure`
    projection  v . items[i], v = filter * the sum of weight^2 items over what a user has
    neighbours  the sum of rows of a sparse (items, items) matrix over what a user has
    constant    one value per item, the same for everybody

Every attribute of a Mixture that its weights name is one of them, whatever it is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from medapps.errors import MedappsError
from medapps.model.rule import BILINEAR, EPSILON, EUCLIDEAN, MODULUS, PAIRRE_L1, PAIRRE_L2
from medapps.model.rules import RULES
from medapps.recommend.mixture import Mixture
from medapps.recommend.parts.collaborative import Factors
from medapps.recommend.parts.graph_score import GraphScore
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import Neighbours
from medapps.recommend.parts.spectral import Spectral

MEASURES = {
    EUCLIDEAN: "euclidean",
    MODULUS: "modulus",
    BILINEAR: "product",
    PAIRRE_L2: "euclidean",
    PAIRRE_L1: "absolute",
}
"""How a distance is called in the page."""


@dataclass(frozen=True)
class Part:
    """One part for some users and all items."""

    kind: str
    users: np.ndarray | None = None  # (some users, width) float32
    items: np.ndarray | None = None  # (items, width), or (items,) of a constant
    matrix: csr_matrix | None = None  # (items, items) of neighbours
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    """Short ones that are kept as they are: base or stranger, stretch, unknown items."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings: margin, scale, measure, fold."""


def parts_of(model: Mixture, rows: np.ndarray) -> dict[str, Part]:
    """The parts with a name in the weights, with the rows of some users."""
    return {name: _part(name, getattr(model, name), model, rows) for name in model.weights.names}


def _part(name: str, made: Any, model: Mixture, rows: np.ndarray) -> Part:
    factors = made[0] if isinstance(made, tuple) else made
    if isinstance(factors, Factors):
        how = {key: getattr(factors.how, key) for key in ("unobserved", "regularization", "power")}
        base = {"base": np.asarray(factors.base, np.float32)}
        return Part("dot", factors.users[rows], factors.items, None, base, {"fold": how})
    if isinstance(made, LowRank):
        stranger = {"stranger": _typical(made.users, model)}
        return Part("dot", made.users[rows], made.items, None, stranger)
    if isinstance(made, Spectral):
        few = {"weight": made.weight, "filter": made.filter}
        return Part("projection", items=made.items, vectors=few)
    if isinstance(made, Neighbours):
        return Part("neighbours", matrix=made.matrix)
    if isinstance(made, GraphScore):
        return _distance(made, rows)
    if isinstance(made, np.ndarray) and made.shape == (model.train.shape[1],):
        return Part("constant", items=made)
    raise MedappsError(f"A page cannot compute the part {name!r} of this recommender.")


def _typical(users: np.ndarray, model: Mixture) -> np.ndarray:
    """What a user of whom only purchases are known has in common with all: the mean."""
    buyers = np.diff(model.train.indptr) > 0
    return users[buyers].mean(0) if buyers.any() else users.mean(0)


def _distance(graph: GraphScore, rows: np.ndarray) -> Part:
    """The graph's score; PairRE as a distance of stretched unit vectors."""
    spec = graph.spec
    measure = MEASURES.get(RULES[spec.scorer].NORMS[spec.norm])
    if measure is None:
        raise MedappsError(
            f"A page cannot compute the distance of the scorer {spec.scorer!r}.",
            fix="Leave the part out: --set 'recommend.parts=[collaborative,neighbours]'.",
        )
    users = graph.queries(rows).numpy()
    vectors = {"unknown": np.flatnonzero(~graph.known_items).astype(np.uint32)}
    if spec.scorer == "pairre":
        stretched, _, plain = np.split(users, 3, axis=1)
        users = stretched / np.sqrt(np.square(plain).sum(1, keepdims=True) + np.float32(EPSILON))
        vectors["stretch"] = np.array(graph.relation[1::2], np.float32)
    facts = {"measure": measure, "scale": spec.scale, "margin": spec.margin}
    return Part("distance", np.ascontiguousarray(users), graph.items, None, vectors, facts)


def likeness(parts: dict[str, Part]) -> str | None:
    """The part whose item vectors say what is alike: the graph's, else a factorisation's."""
    kinds = [name for name, part in parts.items() if part.kind == "distance"]
    folds = [name for name, part in parts.items() if "fold" in part.facts]
    return next(iter(kinds + folds), None)
