"""References that need no graph, each tuned on the same validation purchases.

popularity, ItemKNN, EASE, and implicit's ALS and BPR. ALS has two penalties: implicit's own, and
ours, which grows with the frequency of a row (`Factoring` without what users have in common).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from medapps.errors import MedappsError
from medapps.recommend.lists import Scores, evaluate
from medapps.recommend.parts.collaborative import Factoring, factorise, fold_in
from medapps.recommend.parts.neighbours import ease, ease_weights, item_knn

Model = Callable[[csr_matrix], Scores]
"""A trained reference: the purchases that its users have, to scores of these users."""
Setting = Mapping[str, Any]

DENSE = 12_500
"""Up to so many items the reference EASE keeps every weight; above it the NEIGHBOURS largest."""
NEIGHBOURS = 200
GRIDS: dict[str, tuple[Setting, ...]] = {
    "popularity": ({},),
    "itemknn": tuple(
        {"shrink": s, "power": p} for p in (0.5, 0.4) for s in (0.0, 10.0, 50.0, 200.0)
    ),
    "ease": tuple({"regularization": r} for r in (10.0, 30.0, 100.0, 300.0)),
    "als": (
        *(
            {"factors": f, "regularization": r, "alpha": a}
            for f, r, a in (
                (32, 0.1, 1.0),
                (64, 0.1, 1.0),
                (64, 1.0, 1.0),
                (64, 10.0, 10.0),
                (128, 1.0, 1.0),
                (128, 10.0, 10.0),
                (256, 10.0, 10.0),
            )
        ),
        *(
            {"factors": f, "unobserved": a, "regularization": r}
            for f in (64, 128)
            for a, r in ((0.05, 0.1), (0.05, 0.3), (0.2, 0.1), (0.2, 0.3))
        ),
    ),
    "bpr": tuple(
        {"factors": f, "regularization": 0.01, "learning_rate": rate}
        for f, rate in ((32, 0.002), (64, 0.002), (32, 0.01), (64, 0.01), (32, 0.05))
    ),
}
"""implicit's BPR wants small rates: it draws negatives by popularity and long training unlearns it.
"""


@dataclass(frozen=True)
class Reference:
    """The best setting of a reference on validation purchases."""

    name: str
    model: Model
    setting: dict[str, Any]
    valid: float
    """ndcg@10 on the validation purchases."""
    seconds: float
    """All trainings of the search."""


def tune(
    name: str,
    train: csr_matrix,
    valid: csr_matrix,
    grid: Iterable[Setting] | None = None,
    users: int = 2000,
    seed: int = 0,
) -> Reference:
    """Train every setting and keep the one that ranks the held-out purchases best."""
    if name not in GRIDS:
        raise MedappsError(
            f"There is no reference {name!r}.", fix=f"Take some of {', '.join(GRIDS)}."
        )
    asked = np.flatnonzero(np.diff(valid.indptr))
    if len(asked) > users:
        asked = np.sort(np.random.default_rng(seed).choice(asked, users, replace=False))
    best: tuple[float, Model, Setting] | None = None
    seconds = 0.0
    for setting in GRIDS[name] if grid is None else grid:
        began = time.perf_counter()
        model = fit(name, train, setting, seed)
        seconds += time.perf_counter() - began
        value = 0.0
        if len(asked):
            value = evaluate(model(train), valid, train, users=asked)["ndcg_at_10"].mean()
        if best is None or value > best[0]:
            best = float(value), model, setting
    assert best is not None, "an empty grid"
    return Reference(name, best[1], dict(best[2]), best[0], seconds)


def fit(name: str, train: csr_matrix, setting: Setting, seed: int = 0) -> Model:
    """One reference with one setting."""
    if name == "popularity":
        count = np.bincount(train.indices, minlength=train.shape[1]).astype(np.float32)
        return lambda purchases: lambda users: np.tile(count, (len(users), 1))
    if name == "ease" and train.shape[1] <= DENSE:
        weights = ease_weights(train, **setting)
        return lambda purchases: lambda users: purchases[users] @ weights
    if name in ("itemknn", "ease"):
        part = (item_knn if name == "itemknn" else ease)(train, neighbours=NEIGHBOURS, **setting)
        return lambda purchases: lambda users: part.scores(purchases[users])
    if name == "als" and "unobserved" in setting:
        factors = factorise(train, Factoring(**setting), seed=seed)
        return lambda purchases: lambda users: fold_in(factors, purchases[users]) @ factors.items.T
    return _implicit(name, train, setting, seed)


def _implicit(name: str, train: csr_matrix, setting: Setting, seed: int) -> Model:
    try:
        from implicit.cpu.als import AlternatingLeastSquares
        from implicit.cpu.bpr import BayesianPersonalizedRanking
    except ImportError:
        raise MedappsError(
            f"The reference {name} needs the package implicit.", fix="pip install implicit"
        ) from None
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    make, rounds = {
        "als": (AlternatingLeastSquares, 15),
        "bpr": (BayesianPersonalizedRanking, 100),
    }[name]
    with threadpool_limits(1, "blas"):
        model = make(**setting, iterations=rounds, random_state=seed, num_threads=1)
        model.fit(train, show_progress=False)
    users, items = np.asarray(model.user_factors), np.asarray(model.item_factors)
    return lambda purchases: lambda rows: users[rows] @ items.T
