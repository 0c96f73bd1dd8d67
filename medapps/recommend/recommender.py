"""Recommender: trained parts with the names of users and items; recommends and gives reasons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix, diags

from medapps.arrays import open_arrays
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec
from medapps.recommend.blend import Weights
from medapps.recommend.mixture import Mixture
from medapps.recommend.parts.collaborative import Factoring, Factors
from medapps.recommend.parts.graph_score import GraphScore
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import Neighbours
from medapps.recommend.parts.spectral import Spectral
from medapps.store import NEW, Provenance, read_manifest, usable, writing

if TYPE_CHECKING:
    from medapps.recommend.ncf_paper.model import NcfRecommender

REASONS = 3
"""Purchases and neighbours that are named for a recommended item."""
ENTRIES = 50_000
"""Possible reasons that are compared at a time."""


@dataclass(frozen=True, repr=False)
class Recommender:
    """The parts and their weights, and what every user has."""

    model: Mixture
    users: IdMap
    items: IdMap
    purchases: csr_matrix
    """(users, items): what is left out of a user's list."""
    kind: str = "ncf"
    """ncf or graph."""
    method: str = "none"
    dim: int = 0

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {w:.2f}" for n, w in self.model.weights.table().items() if w)
        return (
            f"Recommender({self.kind} of {self.method} at {self.dim}: {len(self.users):,} users, "
            f"{len(self.items):,} items; {parts})"
        )

    def recommend(self, users: pl.Series | list[Any], k: int = 10) -> pl.DataFrame:
        """The k best new items of each user: user, item, rank, score, in_graph, has_purchases.

        A user of whom nothing is known gets what is popular, and both flags say so. A user who has
        all but a few items gets a shorter list.
        """
        users = users if isinstance(users, pl.Series) else pl.Series("user", users)
        if k < 1 or k > len(self.items):
            raise MedappsError(
                f"{k} recommendations are wanted, the catalogue has {len(self.items)} items.",
                fix=f"Use -k between 1 and {len(self.items)}.",
            )
        if users.null_count():
            raise MedappsError("The users to recommend for include empty names.")
        rows = self.users.ids(users)
        ids, scores = self._lists(rows, k)
        known = np.flatnonzero(rows >= 0)
        in_graph, bought = np.zeros((2, len(rows)), bool)
        in_graph[known] = self.model.known_users[rows[known]]
        bought[known] = np.diff(self.purchases.indptr)[rows[known]] > 0
        flat = ids.reshape(-1)
        table = pl.DataFrame(
            {
                "user": users.gather(np.repeat(np.arange(len(rows)), k)),
                "item": self.items.names(np.maximum(flat, 0)),
                "rank": np.tile(np.arange(1, k + 1), len(rows)),
                "score": scores.reshape(-1),
                "in_graph": np.repeat(in_graph, k),
                "has_purchases": np.repeat(bought, k),
            }
        )
        return table if (flat >= 0).all() else table.filter(pl.Series(flat >= 0))

    def _lists(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Lists of rows of users; strangers (-1) share the list of what is popular."""
        ids = np.empty((len(rows), k), np.int32)
        scores = np.empty((len(rows), k), np.float32)
        known = rows >= 0
        ids[known], scores[known] = self.model.recommend(rows[known], self.purchases, k)
        if not known.all():
            order = np.argsort(-self.model.popularity, kind="stable")[:k]
            ids[~known], scores[~known] = order, self.model.popularity[order]
        return ids, scores

    def why(self, recommended: pl.DataFrame, count: int = REASONS) -> pl.DataFrame:
        """For each (user, item): the user's purchases most alike, the nearest users who took it.

        Columns user, item, kind (purchase or neighbour), reason (a name) and strength, strongest
        first. Likeness is the cosine of the graph's vectors, else of a factorisation's, else of
        purchases.
        """
        user, item = self.users.ids(recommended["user"]), self.items.ids(recommended["item"])
        rows = np.flatnonzero((user >= 0) & (item >= 0))
        likeness, nearness = self._item_vectors(), self._user_vectors()
        takers = csr_matrix(self.purchases.T)
        found = [
            _reasons(self.purchases, user[rows], item[rows], likeness, count, skip=item[rows]),
            _reasons(takers, item[rows], user[rows], nearness, count, skip=user[rows]),
        ]
        names = ("purchase", self.items), ("neighbour", self.users)
        tables = []
        for (kind, ids), (case, reason, strength) in zip(names, found, strict=True):
            at = rows[case]
            columns = {name: recommended[name].gather(at) for name in ("user", "item")}
            columns["reason"] = ids.names(reason).cast(pl.String)
            table = pl.DataFrame(columns | {"strength": strength.astype(np.float32)})
            tables.append(table.with_columns(kind=pl.lit(kind)).select(REASON_COLUMNS))
        return pl.concat(tables)

    def _item_vectors(self) -> np.ndarray | csr_matrix:
        """(items, width) of length one: the graph's, a factorisation's, or who bought them."""
        model = self.model
        if model.graph is not None:
            return _unit(model.graph.items)
        factors = model.collaborative or (model.gmf and model.gmf[0])
        return _unit(factors.items) if factors else _unit_rows(csr_matrix(self.purchases.T))

    def _user_vectors(self) -> np.ndarray | csr_matrix:
        """(users, width) likewise."""
        model = self.model
        if model.graph is not None:
            return _unit(model.graph.users)
        factors = model.collaborative or (model.gmf and model.gmf[0])
        return _unit(factors.users) if factors else _unit_rows(self.purchases)

    def save(self, folder: Path, provenance: Provenance = NEW) -> None:
        """Write the recommender as a folder."""
        model = self.model
        arrays: dict[str, np.ndarray] = {}
        facts: dict[str, dict[str, Any]] = {}
        for name, (values, about) in _packed(model).items():
            arrays |= {f"{name}.{key}": value for key, value in values.items()}
            facts[name] = about
        arrays |= {f"purchases.{k}": v for k, v in _sparse(self.purchases).items()}
        with writing(folder, kind="recommender", provenance=provenance) as draft:
            draft.arrays("parts.safetensors", arrays)
            self.users.save(draft.path("users.safetensors"))
            self.items.save(draft.path("items.safetensors"))
            draft.about = {
                "model": self.kind,
                "method": self.method,
                "dim": self.dim,
                "parts": facts,
                "names": list(model.weights.names),
                "valid": model.weights.valid,
                "settings": model.settings,
            }

    @classmethod
    @usable("recommender")
    def load(cls, folder: Path) -> Recommender:
        """Read a recommender back."""
        folder = Path(folder)
        about: dict[str, Any] = dict(read_manifest(folder, kind="recommender").about)
        flat = {k: np.asarray(v) for k, v in open_arrays(folder / "parts.safetensors").items()}
        groups: dict[str, dict[str, np.ndarray]] = {}
        for key, value in flat.items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = value
        users, items = (IdMap.load(folder / f"{kind}.safetensors") for kind in ("users", "items"))
        shape = len(users), len(items)
        purchases = _matrix(groups["purchases"], shape)
        model = _unpacked(groups, about, purchases)
        rest = {"kind": about["model"], "method": about["method"], "dim": about["dim"]}
        return cls(model, users, items, purchases, **rest)


REASON_COLUMNS = ("user", "item", "kind", "reason", "strength")


def trimmed(model: Mixture) -> Mixture:
    """The same without parts that no user gives weight to."""
    weights = model.weights
    used = (weights.values.sum(0) + weights.cold) > 0
    used |= np.array([name == "popularity" for name in weights.names])
    kept = tuple(name for name, keep in zip(weights.names, used, strict=True) if keep)
    parts = ("collaborative", "neighbours", "spectral", "graph", "service", "gmf")
    gone = {name: None for name in parts if name not in kept}
    fewer = replace(weights, names=kept, values=weights.values[:, used], cold=weights.cold[used])
    return replace(model, **gone, weights=fewer)  # type: ignore[arg-type]


def _packed(model: Mixture) -> dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Arrays and plain facts of every part."""
    weights = model.weights
    out: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
        "weights": (
            {"bounds": weights.bounds, "values": weights.values, "cold": weights.cold},
            {},
        ),
        "popularity": ({"values": model.popularity, "known_users": model.known_users}, {}),
    }
    if model.collaborative is not None:
        out["collaborative"] = _factors(model.collaborative)
    if model.gmf is not None:
        values, about = _factors(model.gmf[0])
        out["gmf"] = (values | {"service": model.gmf[1]}, about)
    if model.neighbours is not None:
        out["neighbours"] = (_sparse(model.neighbours.matrix), {})
    if model.spectral is not None:
        names = ("basis", "filter", "weight")
        out["spectral"] = ({name: getattr(model.spectral, name) for name in names}, {})
    if model.graph is not None:
        graph = model.graph
        fields = ("users", "items", "relation", "known_users", "known_items")
        out["graph"] = ({name: getattr(graph, name) for name in fields}, asdict(graph.spec))
    if model.service is not None:
        out["service"] = ({"users": model.service.users, "items": model.service.items}, {})
    return out


def _unpacked(
    groups: dict[str, dict[str, np.ndarray]], about: dict[str, Any], purchases: csr_matrix
) -> Mixture:
    def factors(name: str) -> Factors | None:
        if name not in groups:
            return None
        part = groups[name]
        how = Factoring(**about["parts"][name])
        return Factors(part["users"], part["items"], part["base"], part.get("map"), how)

    gmf, graph, near = factors("gmf"), None, None
    if "graph" in groups:
        part = {k: v.astype(bool) if "known" in k else v for k, v in groups["graph"].items()}
        part |= {k: np.array(part[k]) for k in ("items", "relation")}  # torch refuses mapped ones
        graph = GraphScore(**part, spec=ScoreSpec(**about["parts"]["graph"]))
    if "neighbours" in groups:
        size = purchases.shape[1]
        near = Neighbours(_matrix(groups["neighbours"], (size, size)))
    part = groups["weights"]
    return Mixture(
        train=purchases,
        collaborative=factors("collaborative"),
        neighbours=near,
        graph=graph,
        service=LowRank(**groups["service"]) if "service" in groups else None,
        spectral=Spectral(**groups["spectral"]) if "spectral" in groups else None,
        gmf=(gmf, groups["gmf"]["service"]) if gmf is not None else None,
        popularity=groups["popularity"]["values"],
        known_users=groups["popularity"]["known_users"].astype(bool),
        weights=Weights(
            tuple(about["names"]), part["bounds"], part["values"], part["cold"], about["valid"]
        ),
        settings=about["settings"],
    )


def _factors(factors: Factors) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {"users": factors.users, "items": factors.items, "base": factors.base}
    if factors.map is not None:
        arrays["map"] = factors.map
    return arrays, asdict(factors.how)


def _sparse(matrix: csr_matrix) -> dict[str, np.ndarray]:
    return {"pointer": matrix.indptr, "columns": matrix.indices, "values": matrix.data}


def _matrix(arrays: dict[str, np.ndarray], shape: tuple[int, int]) -> csr_matrix:
    return csr_matrix((arrays["values"], arrays["columns"], arrays["pointer"]), shape)


def _unit(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(length, 1e-12)


def _unit_rows(matrix: csr_matrix) -> csr_matrix:
    """Rows of ones, divided by their length."""
    return csr_matrix(diags(np.maximum(np.diff(matrix.indptr), 1) ** -0.5) @ matrix)


def _reasons(
    matrix: csr_matrix,
    owner: np.ndarray,  # (n,) rows of the matrix, whose entries may be reasons
    asked: np.ndarray,  # (n,) what the reasons are compared with, rows of `vectors`
    vectors: np.ndarray | csr_matrix,  # of length one
    count: int,
    skip: np.ndarray,  # (n,) an entry that is no reason
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Case, entry and cosine of the `count` entries of each owner most like what is asked."""
    total = np.cumsum(np.diff(matrix.indptr)[owner])
    cuts = np.flatnonzero(np.diff(total // ENTRIES)) + 1
    found = []
    for part in np.split(np.arange(len(owner)), cuts):
        own = matrix[owner[part]]
        case, entry = np.repeat(part, np.diff(own.indptr)), own.indices
        one, other = vectors[asked[case]], vectors[entry]
        if isinstance(one, np.ndarray):
            near = np.einsum("ij,ij->i", one, other)
        else:
            near = np.asarray(one.multiply(other).sum(1)).reshape(-1)
        good = (near > 0) & (entry != skip[case])
        case, entry, near = case[good], entry[good], near[good]
        order = np.lexsort((entry, -near, case))
        case, entry, near = case[order], entry[order], near[order]
        keep = np.arange(len(case)) - np.searchsorted(case, case) < count
        found.append((case[keep], entry[keep], near[keep]))
    case, entry, near = (np.concatenate(values) for values in zip(*found, strict=True))
    return case, entry, near


def load_recommender(folder: Path) -> Recommender | NcfRecommender:
    """The recommender in a folder; that of the NCF paper answers the same questions."""
    about = read_manifest(Path(folder), kind="recommender", verify_below=0).about
    if about.get("model") != "ncf-paper":
        return Recommender.load(folder)
    from medapps.recommend.ncf_paper.model import NcfRecommender

    return NcfRecommender.load(folder)
