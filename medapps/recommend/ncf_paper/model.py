"""NcfRecommender: a trained NCF by name; recommends and explains without its training data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from medapps.arrays import open_arrays
from medapps.crop.service import Scaling, Source, finite_vectors
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.recommend.config import NcfConfig, RecommendConfig
from medapps.recommend.ncf_paper.fit import NcfFit
from medapps.recommend.ncf_paper.known_pairs import KnownPairs
from medapps.recommend.ncf_paper.network import NeuMF, arrays_of
from medapps.recommend.ncf_paper.problem import Problem
from medapps.recommend.ncf_paper.ranking import PAIRS, Scorer, worst_nan_
from medapps.store import NEW, Provenance, read_manifest, usable, writing


@dataclass(frozen=True)
class NcfRecommender:
    """The network, the names of its users and items, what each user has, and its vectors."""

    model: NeuMF
    config: NcfConfig
    users: IdMap
    items: IdMap
    seen: KnownPairs
    unknown: np.ndarray  # (users,) bool: no training interaction
    service: np.ndarray | None  # (users, dim + 1) as the network reads it
    scaling: Scaling | None
    method: str
    dim: int

    @classmethod
    def of(
        cls,
        fit: NcfFit,
        study: Problem,
        config: RecommendConfig,
        method: str,
        dim: int,
        scaling: Scaling | None,
        service: np.ndarray | None,
    ) -> NcfRecommender:
        """Everything that recommending needs from a finished training."""
        return cls(
            fit.model,
            config.ncf,
            study.users,
            study.items,
            study.seen,
            study.unknown,
            service,
            scaling,
            method,
            dim,
        )

    def recommend(
        self, users: pl.Series, k: int = 10, source: Source | None = None
    ) -> pl.DataFrame:
        """The k best new items of each user: user, item, rank, score, in_graph, has_purchases.

        A user that was not trained on is scored by its vector in `source`, if it has one there.
        """
        if k < 1 or k > len(self.items):
            raise MedappsError(
                f"{k} recommendations are wanted, the catalogue has {len(self.items)} items.",
                fix=f"Use -k between 1 and {len(self.items)}.",
            )
        if users.null_count():
            raise MedappsError("The users to recommend for include empty names.")
        ids = self.users.ids(users)
        vectors = self._vectors(users, ids, source)
        items, scores = self._top(ids, vectors, k)
        in_graph = np.zeros(len(ids), bool) if vectors is None else vectors[:, -1] == 0
        rank = np.tile(np.arange(1, k + 1), len(ids))
        flat = items.reshape(-1)
        table = pl.DataFrame(
            {
                "user": users.gather(np.repeat(np.arange(len(ids)), k)),
                "item": self.items.names(np.maximum(flat, 0)),
                "rank": rank,
                "score": scores.reshape(-1),
                "in_graph": np.repeat(in_graph, k),
                "has_purchases": np.repeat((ids >= 0) & ~self.unknown[np.maximum(ids, 0)], k),
            }
        )
        return table.filter(pl.Series(flat >= 0))

    def _vectors(
        self, users: pl.Series, ids: np.ndarray, source: Source | None
    ) -> np.ndarray | None:
        """What the network reads for these users; the missing flag for those without a vector."""
        if self.service is None:
            return None
        out = np.zeros((len(ids), self.service.shape[1]), np.float32)
        out[:, -1] = 1
        out[ids >= 0] = self.service[ids[ids >= 0]]
        new = np.flatnonzero(ids < 0)
        if source is not None and len(new) and self.scaling is not None:
            if source.dim != self.dim:
                raise MedappsError(
                    f"The recommender was trained on {self.dim} numbers per user, "
                    f"the vectors given have {source.dim}.",
                    fix=f"Use a crop with --dim {self.dim}.",
                )
            values, known = finite_vectors(source, users.gather(new))
            rows = self.scaling.apply(values, known)
            rows[:, :-1] *= self.config.service_gain * values.shape[1] ** -0.5
            out[new] = rows
        return out

    def _top(
        self, ids: np.ndarray, vectors: np.ndarray | None, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Best items (users, k) with scores; -1 where a user has fewer unseen items."""
        scorer, size = Scorer(self.model), max(1, PAIRS // len(self.items))
        items, scores = np.empty((len(ids), k), np.int32), np.empty((len(ids), k), np.float32)
        stranger = (ids < 0) | self.unknown[np.maximum(ids, 0)]
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            rows = np.where(stranger[part], self.model.n_users, ids[part]).astype(np.int64)
            service = None if vectors is None else torch.from_numpy(vectors[part])
            values = worst_nan_(scorer.scores(torch.from_numpy(rows), service))
            taken = self.seen.mask(np.maximum(ids[part], 0)) & (ids[part] >= 0)[:, None]
            values.masked_fill_(torch.from_numpy(taken), -torch.inf)
            best, place = values.topk(k, dim=1)
            scores[part] = best.numpy()
            items[part] = np.where(np.isfinite(scores[part]), place.numpy(), -1)
        return items, scores

    def why(self, recommended: pl.DataFrame, count: int = 3) -> pl.DataFrame:
        """For each recommended (user, item): the nearest users by vector who took the item.

        Columns user, item, kind, reason and strength, as for every recommender. Users without a
        vector, and items that nobody took, have no rows.
        """
        if self.service is None:
            raise MedappsError(
                "This recommender has no graph vectors, so it cannot name graph neighbours.",
                fix="Train it with a crop, not with --method none.",
            )
        unit = self.service[:, :-1]
        unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
        user, item = self.users.ids(recommended["user"]), self.items.ids(recommended["item"])
        rows = np.flatnonzero((user >= 0) & (item >= 0))
        owner, taken = self.seen.keys // len(self.items), self.seen.keys % len(self.items)
        order = np.argsort(taken, kind="stable")
        owner, taken = owner[order], taken[order]
        low, high = np.searchsorted(taken, item[rows]), np.searchsorted(taken, item[rows], "right")
        # every (recommendation, taker) pair at once
        size = high - low
        case = np.repeat(rows, size)
        shift = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        taker = owner[np.repeat(low, size) + shift]
        near = np.einsum("ij,ij->i", unit[user[case]], unit[taker])
        named = (self.service[taker, -1] == 0) & (self.service[user[case], -1] == 0)
        named &= taker != user[case]
        case, taker, near = case[named], taker[named], near[named]
        order = np.lexsort((taker, -near, case))
        case, taker, near = case[order], taker[order], near[order]
        first = np.searchsorted(case, case)
        keep = np.arange(len(case)) - first < count
        case, taker, near = case[keep], taker[keep], near[keep]
        return pl.DataFrame(
            {
                "user": recommended["user"].gather(case),
                "item": recommended["item"].gather(case),
                "kind": ["neighbour"] * len(case),
                "reason": self.users.names(taker).cast(pl.String),
                "strength": near,
            }
        )

    def save(self, folder: Path, provenance: Provenance = NEW) -> None:
        """Write the recommender as a folder."""
        ncf = self.config.plain()
        with writing(folder, kind="recommender", provenance=provenance) as draft:
            draft.arrays("model.safetensors", arrays_of(self.model))
            beside: dict[str, np.ndarray] = {"seen": self.seen.keys, "unknown": self.unknown}
            if self.service is not None and self.scaling is not None:
                beside["service"] = self.service
                beside["mean"], beside["deviation"] = self.scaling.mean, self.scaling.deviation
            draft.arrays("users_items.safetensors", beside)
            self.users.save(draft.path("users.safetensors"))
            self.items.save(draft.path("items.safetensors"))
            draft.about = {"model": "ncf-paper", "method": self.method, "dim": self.dim, "ncf": ncf}

    @classmethod
    @usable("recommender")
    def load(cls, folder: Path) -> NcfRecommender:
        """Read a recommender back."""
        folder = Path(folder)
        about: dict[str, Any] = read_manifest(folder, kind="recommender").about
        config = NcfConfig(**about["ncf"])
        beside = {
            k: np.asarray(v) for k, v in open_arrays(folder / "users_items.safetensors").items()
        }
        users = IdMap.load(folder / "users.safetensors")
        items = IdMap.load(folder / "items.safetensors")
        keys, service = beside["seen"], beside.get("service")
        model = NeuMF(len(users), len(items), 0 if service is None else service.shape[1], config)
        weights = open_arrays(folder / "model.safetensors")
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(torch.from_numpy(np.array(weights[name])))
        scaling = Scaling(beside["mean"], beside["deviation"]) if service is not None else None
        return cls(
            model,
            config,
            users,
            items,
            KnownPairs.build(keys // len(items), keys % len(items), len(users), len(items)),
            beside["unknown"].astype(bool),
            service,
            scaling,
            about["method"],
            about["dim"],
        )
