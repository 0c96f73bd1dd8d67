"""References that need no graph: popularity, and implicit's ALS and BPR on the same split."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from medapps.errors import MedappsError
from medapps.evaluate.metrics import rank_among, reward
from medapps.recommend.problem import Problem
from medapps.recommend.ranking import PAIRS, count_ranks

Scores = Callable[[np.ndarray], np.ndarray]
"""Users (n,) to the scores of all items, float32 (n, items)."""

ALS_GRID: tuple[dict[str, Any], ...] = tuple(
    {"factors": f, "regularization": r, "alpha": a}
    for f, r, a in ((32, 0.1, 1.0), (64, 0.1, 1.0), (64, 1.0, 1.0), (64, 10.0, 10.0))
)
BPR_GRID: tuple[dict[str, Any], ...] = tuple(
    {"factors": f, "regularization": 0.01, "learning_rate": rate}
    for f, rate in ((32, 0.002), (64, 0.002), (32, 0.01), (32, 0.05))
)
"""Small rates: implicit draws negatives by popularity, so that long training unlearns it."""


def popularity_scores(study: Problem) -> Scores:
    """Every user gets the items in order of their training interactions."""
    count = np.bincount(study.split.train[:, 1], minlength=len(study.items)).astype(np.float32)
    return lambda users: np.tile(count, (len(users), 1))


@dataclass(frozen=True)
class ReferenceRanks:
    """Ranks of a reference on the test rows."""

    full: np.ndarray  # (tests,)
    sampled: np.ndarray  # (tests,)
    lists: np.ndarray  # (tests, top)
    seconds: float  # of all trainings, the search included
    setting: dict[str, Any]


def reference_ranks(study: Problem, name: str, top: int, seed: int = 0) -> ReferenceRanks:
    """Train a reference (popularity, als, bpr) and rank the test rows with it."""
    if name == "popularity":
        return ReferenceRanks(*score_ranks(study, popularity_scores(study), top), 0.0, {})
    scores, setting, seconds = implicit_scores(study, name, seed)
    return ReferenceRanks(*score_ranks(study, scores, top), seconds, setting)


def score_ranks(
    study: Problem, scores: Scores, top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Full ranks (tests,), sampled ranks (tests,) and lists (tests, top) of any score function."""
    test = study.split.test
    full, sampled = np.empty(len(test)), np.empty(len(test))
    lists = np.empty((len(test), top), np.int32)
    block = max(1, PAIRS // len(study.items))
    for start in range(0, len(test), block):
        part = slice(start, start + block)
        user, item = test[part, 0], test[part, 1]
        values = np.ascontiguousarray(scores(user), np.float32)
        rows = np.arange(len(user))
        own, rivals = values[rows, item][:, None], values[rows[:, None], study.candidates[part]]
        counts = study.candidates[part] != item[:, None]
        sampled[part] = rank_among(own, rivals, counts)
        tensor = torch.from_numpy(values.copy())
        full[part] = count_ranks(tensor, item, study.seen.mask(user))
        lists[part] = tensor.topk(top, dim=1).indices.numpy()
    return full, sampled, lists


def implicit_scores(
    study: Problem, name: str, seed: int, valid_users: int = 2000
) -> tuple[Scores, dict[str, Any], float]:
    """ALS or BPR with the best of a small grid on validation items; its scores and seconds.

    The network of the task stops early on the same validation items, so both are tuned alike.
    """
    try:
        from implicit.cpu.als import AlternatingLeastSquares
        from implicit.cpu.bpr import BayesianPersonalizedRanking
    except ImportError:
        raise MedappsError(
            f"The reference {name} needs the package implicit.", fix="pip install implicit"
        ) from None
    from scipy.sparse import csr_matrix
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    train = study.split.train
    shape = (len(study.users), len(study.items))
    matrix = csr_matrix((np.ones(len(train), np.float32), (train[:, 0], train[:, 1])), shape=shape)
    makers: dict[str, tuple[Any, tuple[dict[str, Any], ...], int]] = {
        "als": (AlternatingLeastSquares, ALS_GRID, 15),
        "bpr": (BayesianPersonalizedRanking, BPR_GRID, 100),
    }
    make, grid, iterations = makers[name]
    valid = study.split.valid[:: max(1, len(study.split.valid) // valid_users)]
    best, chosen, seconds = -1.0, None, 0.0
    for setting in grid:
        began = time.perf_counter()
        with threadpool_limits(1, "blas"):
            model = make(**setting, iterations=iterations, random_state=seed, num_threads=1)
            model.fit(matrix, show_progress=False)
        seconds += time.perf_counter() - began
        users, items = np.asarray(model.user_factors), np.asarray(model.item_factors)
        value = _validation(study, valid, users, items)
        if value > best:
            best, chosen = value, (setting, users, items)
    assert chosen is not None
    setting, users, items = chosen
    return (lambda rows: users[rows] @ items.T), setting, seconds


def _validation(study: Problem, valid: np.ndarray, users: np.ndarray, items: np.ndarray) -> float:
    """Mean full-ranking ndcg@10 of the validation rows, training items removed."""
    total, block = 0.0, max(1, PAIRS // len(items))
    for start in range(0, len(valid), block):
        rows = valid[start : start + block]
        scores = torch.from_numpy(users[rows[:, 0]] @ items.T)
        ranks = count_ranks(scores, rows[:, 1], study.trained.mask(rows[:, 0]))
        total += float(reward(ranks, 10).sum())
    return total / max(len(valid), 1)
