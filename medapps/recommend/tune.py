"""Settings of each part, chosen on held-out purchases by climbing from usual values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_matrix

from medapps.recommend.lists import Scores, evaluate
from medapps.recommend.parts.collaborative import Factoring, Factors, factorise
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import LIMIT, Neighbours, ease, item_knn
from medapps.recommend.parts.service import Service, standard, user_map
from medapps.recommend.parts.spectral import MOST, Spectral, decompose

T = TypeVar("T")

TUNING_USERS = 2000
"""Validation users that choose the settings of a part."""
TUNING_ITEMS = 4000
"""Items bought most over which EASE's regularization is searched; the last fit takes all of a
catalogue that is not too large for that.
"""

CLIMB = {
    "unobserved": (0.01, 0.03, 0.1, 0.2, 0.4, 0.8),
    "regularization": (0.03, 0.1, 0.3, 0.6, 1.2, 2.5, 5.0),
    "factors": (64, 128, 256),
}
START = {"unobserved": 0.1, "regularization": 0.3, "factors": 64}
INJECTED_RIDGE = 10.0
EASE = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
SHRINK = (0.0, 10.0, 50.0, 200.0)
RIDGE = (0.003, 0.01, 0.03, 0.1, 0.3)
SPECTRAL = {
    "item_power": (0.1, 0.25, 0.4),
    "user_power": (0.25, 0.5),
    "strength": (0.0, 0.1, 0.3, 1.0, 3.0),
    "factors": (64, 128, 256, 512, MOST),
}
FEW = 256
"""Factors with which the other settings of the spectral filter are searched."""


class Tuner:
    """Chooses settings on some of the validation users."""

    def __init__(self, train: csr_matrix, valid: csr_matrix, seed: int) -> None:
        self.train, self.valid, self.seed = train, valid, seed
        users = np.flatnonzero(np.diff(valid.indptr))
        draw = np.random.default_rng(seed).permutation(users)[:TUNING_USERS]
        self.users = np.sort(draw)
        self.settings: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}

    def value(self, scores: Scores) -> float:
        """Mean ndcg@10, training purchases left out."""
        found = evaluate(scores, self.valid, self.train, users=self.users)
        return float(found["ndcg_at_10"].mean()) if len(self.users) else 0.0

    def collaborative(self) -> Factors:
        """Climb in each setting in turn; more factors only where they pay."""
        began = time.perf_counter()

        def make(setting: Mapping[str, Any]) -> tuple[float, Factors]:
            factors = factorise(self.train, Factoring(**setting), seed=self.seed)
            return self.value(factors.scores), factors

        setting, _, factors = climb(START, CLIMB, make)
        self._note("collaborative", setting, began)
        return factors

    def neighbours(self) -> Neighbours:
        """The better of EASE and ItemKNN."""
        began = time.perf_counter()

        def knn(setting: Mapping[str, Any]) -> tuple[float, Neighbours]:
            near = item_knn(self.train, **setting)
            return self.value(lambda users: near.scores(self.train[users])), near

        def closed(
            setting: Mapping[str, Any], limit: int = TUNING_ITEMS
        ) -> tuple[float, Neighbours]:
            near = ease(self.train, **setting, limit=limit)
            return self.value(lambda users: near.scores(self.train[users])), near

        first, low, one = climb({"shrink": 10.0}, {"shrink": SHRINK}, knn)
        second, high, two = climb({"regularization": 100.0}, {"regularization": EASE}, closed)
        if TUNING_ITEMS < self.train.shape[1] <= LIMIT:  # the search saw the items bought most
            high, two = closed(second, LIMIT)
        setting, near = (first, one) if low > high else (second, two)
        self._note("neighbours", {"kind": "itemknn" if near is one else "ease"} | setting, began)
        return near

    def spectral(self) -> Spectral:
        """Powers of the numbers of purchases, strength of the filter, and how many factors pay."""
        began = time.perf_counter()
        found = cache(partial(decompose, self.train))

        def make(setting: Mapping[str, Any]) -> tuple[float, Spectral]:
            factors = setting["factors"]
            most = FEW if factors <= FEW else MOST
            how = found(setting["user_power"], setting["item_power"], most, self.seed)
            part = how.cut(factors, setting["strength"])
            return self.value(part.part(self.train)), part

        start = {"item_power": 0.25, "user_power": 0.25, "strength": 0.3, "factors": FEW}
        setting, _, part = climb(start, SPECTRAL, make)
        self._note("spectral", setting, began)
        return part

    def injected(self, service: Service) -> tuple[Factors, np.ndarray]:
        """A factorisation with service vectors of users and items; also those of the users."""
        began = time.perf_counter()
        has = np.diff(self.train.indptr) > 0
        user, item = standard(service.users, service.known_users, has), None
        if service.items is not None and service.known_items is not None:
            sold = np.bincount(self.train.indices, minlength=self.train.shape[1]) > 0
            item = standard(service.items, service.known_items, sold)

        def make(setting: Mapping[str, Any]) -> tuple[float, Factors]:
            how = Factoring(**setting, ridge=INJECTED_RIDGE)
            factors = factorise(self.train, how, user, item, seed=self.seed)
            return self.value(factors.scores), factors

        grid = {name: CLIMB[name] for name in ("regularization", "unobserved")}
        setting, _, factors = climb(START, grid, make)
        self._note("gmf", setting, began)
        return factors, user

    def service(self, service: Service, cold_valid: csr_matrix | None) -> LowRank:
        """The ridge that serves cold users best, or warm ones where none validates."""
        began = time.perf_counter()
        has = np.diff(self.train.indptr) > 0
        vectors = standard(service.users, service.known_users, has)

        def make(setting: Mapping[str, Any]) -> tuple[float, LowRank]:
            found = user_map(vectors, self.train, **setting)
            if cold_valid is not None and cold_valid.nnz:
                return float(evaluate(found, cold_valid, self.train)["ndcg_at_10"].mean()), found
            return self.value(found), found

        setting, _, part = climb({"ridge": 0.03}, {"ridge": RIDGE}, make)
        self._note("service", setting, began)
        return part

    def _note(self, name: str, setting: dict[str, Any], began: float) -> None:
        self.settings[name] = setting
        self.seconds[name] = time.perf_counter() - began


def climb(
    start: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    make: Callable[[Mapping[str, Any]], tuple[float, T]],
) -> tuple[dict[str, Any], float, T]:
    """Move one setting at a time to its neighbours in the grid while the value grows."""
    now = dict(start)
    value, kept = make(now)
    for name, values in grid.items():
        origin = values.index(now[name])
        for way in (-1, 1):
            place, moved = origin + way, False
            while 0 <= place < len(values):
                trial = now | {name: values[place]}
                other, made = make(trial)
                if other <= value:
                    break
                now, value, kept, moved = trial, other, made, True
                place += way
            if moved:
                break
    return now, value, kept
