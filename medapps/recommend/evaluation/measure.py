"""Quality of any recommender on one problem: lists among all items, and ranks among sampled ones.

Users are tested by kind: `full` have training purchases, `fewK` at most K of them, `cold` none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from medapps.evaluate.metrics import coverage, rank_among, rank_metrics
from medapps.evaluate.statistics import bootstrap_interval
from medapps.recommend.evaluation.metrics import CUTOFFS, list_metrics
from medapps.recommend.lists import PAIRS, Scores, mask_seen
from medapps.recommend.parts.kernels import best
from medapps.recommend.problem import Problem

Blocks = Callable[[np.ndarray], Iterator[tuple[slice, np.ndarray]]]
"""Users (n,) to blocks of (rows of them, scores of all items, which may be written to)."""
PAIRED = ("ndcg_at_5", "ndcg_at_10", "recall_at_10", "hit_at_10")
"""Metrics whose values per user are kept."""


@dataclass(frozen=True)
class Tests:
    """What is tested: a problem, its sampled candidates, and the kinds of users."""

    problem: Problem
    rows: np.ndarray  # (t, 2) int32: test pairs of users with purchases, for the sampled protocol
    candidates: np.ndarray  # (t, count) int32
    few: tuple[int, ...] = (5, 10)
    top: int = 10

    @cached_property
    def truth(self) -> csr_matrix:
        """All test purchases."""
        return csr_matrix(self.problem.test + self.problem.cold_test)

    @cached_property
    def users(self) -> np.ndarray:
        """Users with test purchases, ascending."""
        return np.flatnonzero(np.diff(self.truth.indptr))

    def segments(self) -> dict[str, np.ndarray]:
        """Tested users by kind, bool (len(users),) each."""
        count = np.diff(self.problem.train.indptr)[self.users]
        parts = {"full": count > 0} | {f"few{k}": (count > 0) & (count <= k) for k in self.few}
        return parts | {"cold": count == 0}


@dataclass(frozen=True)
class Measured:
    """Means by name, and values per user for paired tests."""

    means: dict[str, float]
    units: dict[str, np.ndarray]  # float32 (users of the segment,)

    def table(self) -> pl.DataFrame:
        """One row per segment and metric with a bootstrap interval over its users."""
        rows = []
        for name, values in self.units.items():
            low, high = bootstrap_interval(values[None])
            segment, _, metric = name.partition(".")
            row = {"segment": segment, "metric": metric, "users": len(values)}
            rows.append(row | {"value": float(values.mean()), "low": low, "high": high})
        return pl.DataFrame(rows)


def measure(blocks: Blocks, tests: Tests) -> Measured:
    """Rank the test purchases of every tested user."""
    users, items = tests.users, tests.truth.shape[1]
    length = min(max(*CUTOFFS, tests.top), items)
    lists = np.full((len(users), length), -1, np.int32)
    spot = np.searchsorted(users, tests.rows[:, 0])  # rows are in ascending order of users
    sampled = np.empty(len(tests.rows))
    known = tests.problem.known
    for part, scores in blocks(users):
        scores[np.isnan(scores)] = -np.inf
        first, last = np.searchsorted(spot, (part.start, part.stop))
        own = tests.rows[first:last, 1]
        row, others = spot[first:last] - part.start, tests.candidates[first:last]
        sampled[first:last] = rank_among(
            scores[row, own][:, None], scores[row[:, None], others], others != own[:, None]
        )
        mask_seen(scores, known, users[part])
        best(scores, length, lists[part], np.empty((part.stop - part.start, length), np.float32))
    values = list_metrics(lists, tests.truth[users])
    means: dict[str, float] = {}
    units: dict[str, np.ndarray] = {}
    for name, rows in tests.segments().items():
        if rows.any():
            means |= {f"{name}.{metric}": float(v[rows].mean()) for metric, v in values.items()}
            units |= {f"{name}.{m}": values[m][rows].astype(np.float32) for m in PAIRED}
    if len(sampled):
        ranks = rank_metrics(sampled, (5, 10))
        means |= {f"sampled.{metric}": float(v.mean()) for metric, v in ranks.items()}
        names = ("ndcg_at_5", "ndcg_at_10", "hit_at_10")
        units |= {f"sampled.{metric}": ranks[metric].astype(np.float32) for metric in names}
    means["full.coverage"] = coverage(lists[:, : tests.top], items)
    return Measured(means, units)


def in_blocks(scores: Scores, items: int) -> Blocks:
    """A plain score function, some users at a time."""

    def blocks(users: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        size = max(1, PAIRS // max(items, 1))
        for begin in range(0, len(users), size):
            part = slice(begin, min(begin + size, len(users)))
            yield part, np.ascontiguousarray(scores(users[part]), np.float32).copy()

    return blocks
