"""Every metric of a recommender against one user at a time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from medapps.graph.config import SplitConfig
from medapps.graph.ids import IdMap
from medapps.graph.split import split_purchases
from medapps.recommend.config import RecommendConfig
from medapps.recommend.evaluation import measure as measuring
from medapps.recommend.evaluation.measure import in_blocks, measure
from medapps.recommend.problem import Problem
from medapps.recommend.run import reference_report
from medapps.recommend.run import tests_of as prepare_tests

USERS, ITEMS, OTHERS = 50, 40, 12


def drawn(seed: int) -> tuple[measuring.Tests, np.ndarray]:
    """A random problem with several test items per user, cold users, and scores with ties."""
    rng = np.random.default_rng(seed)
    lot = rng.random((USERS, ITEMS))
    train, valid, test = lot < 0.15, (lot > 0.5) & (lot < 0.54), lot > 0.93
    train[:6] = valid[:6] = False  # cold
    train[6:12, 2:] = False  # few
    test[-3:] = False  # not tested
    cold = test.copy()
    cold[6:], test[:6] = False, False
    matrices = [csr_matrix(part.astype(np.float32)) for part in (train, valid, test)]
    names = IdMap.of(pl.Series(range(USERS))), IdMap.of(pl.Series(range(ITEMS)))
    empty = csr_matrix((USERS, ITEMS), dtype=np.float32)
    problem = Problem(*names, *matrices, empty, csr_matrix(cold.astype(np.float32)))
    rows = np.argwhere(test & train.any(1)[:, None]).astype(np.int32)
    free = ~(train | valid | test | cold)
    others = [rng.choice(np.flatnonzero(free[user]), OTHERS, replace=False) for user, _ in rows]
    scores = rng.integers(0, 200, (USERS, ITEMS)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = np.nan
    return measuring.Tests(problem, rows, np.array(others, np.int32), few=(2, 5), top=7), scores


def naive(tests: measuring.Tests, scores: np.ndarray) -> dict[str, float]:
    """The same means by loops over users, items and places."""
    problem = tests.problem
    train, valid, test, cold = (
        m.toarray() > 0 for m in (problem.train, problem.valid, problem.test, problem.cold_test)
    )
    collected: dict[str, list[float]] = {}
    shown = set()
    for user in range(USERS):
        wanted = {i for i in range(ITEMS) if test[user, i] or cold[user, i]}
        if not wanted:
            continue
        able = [
            i
            for i in range(ITEMS)
            if not (train[user, i] or valid[user, i]) and not np.isnan(scores[user, i])
        ]
        ranked = sorted(able, key=lambda i: (-scores[user, i], i))
        shown |= set(ranked[:7])
        count = train[user].sum()
        kinds = ["full"] * bool(count) + ["cold"] * (not count)
        kinds += [f"few{k}" for k in (2, 5) if 0 < count <= k]
        for k in (5, 10, 20):
            found = [place for place, i in enumerate(ranked[:k], 1) if i in wanted]
            gain = sum(1 / np.log2(place + 1) for place in found)
            ideal = sum(1 / np.log2(place + 1) for place in range(1, min(len(wanted), k) + 1))
            values = {
                "ndcg": gain / ideal,
                "recall": len(found) / len(wanted),
                "hit": float(bool(found)),
                "precision": len(found) / k,
                "map": sum((n + 1) / place for n, place in enumerate(found)) / len(wanted),
            }
            for kind in kinds:
                for name, value in values.items():
                    collected.setdefault(f"{kind}.{name}_at_{k}", []).append(value)
    for (user, item), others in zip(tests.rows, tests.candidates, strict=True):
        own, others = scores[user, item], scores[user, others]
        rank = 1 + OTHERS if np.isnan(own) else 1 + (others > own).sum() + (others == own).sum() / 2
        for k in (5, 10):
            collected.setdefault(f"sampled.hit_at_{k}", []).append(float(rank <= k))
            value = 1 / np.log2(rank + 1) if rank <= k else 0.0
            collected.setdefault(f"sampled.ndcg_at_{k}", []).append(value)
        collected.setdefault("sampled.mrr", []).append(1 / rank)
    means = {name: float(np.mean(values)) for name, values in collected.items()}
    return means | {"full.coverage": len(shown) / ITEMS}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pairs", [10**6, ITEMS * 7])
def test_metrics_equal_a_loop_over_users(
    seed: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "PAIRS", pairs)  # one block, or blocks of seven users
    tests, scores = drawn(seed)
    before = scores.copy()
    found = measure(in_blocks(lambda users: scores[users], ITEMS), tests)
    assert np.array_equal(scores, before, equal_nan=True)
    expected = naive(tests, scores)
    assert {"cold.ndcg_at_10", "few2.map_at_5", "full.recall_at_20"} < set(expected)
    assert found.means == pytest.approx(expected, abs=1e-6)
    for name, values in found.units.items():
        assert values.mean() == pytest.approx(expected[name], abs=1e-6)
    table = found.table()
    assert table.columns[:3] == ["segment", "metric", "users"] and len(table) == len(found.units)
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()


def test_popularity_ranks_by_hand() -> None:
    rows = [
        ("a", "x", 1),
        ("b", "x", 1),
        ("c", "x", 1),
        ("a", "y", 0),
        ("b", "y", 0),
        ("c", "z", 0),
    ]
    rows += [("a", "z", 5), ("b", "w", 5), ("c", "w", 5)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    frame = frame.with_columns(
        split=pl.when(pl.col("timestamp") == 5).then(pl.lit("test")).otherwise(pl.lit("train"))
    )
    config = RecommendConfig(sampled_negatives=1, list_length=2)
    # training rows: validation takes x of every user (latest), leaving y, y, z
    report = reference_report("popularity", split_purchases(frame), config)
    # a: y seen, x validated -> z (1) against w (0): rank 1; b: w (0) against z (1): rank 2;
    # c: w (0) against y (2): rank 2
    second = 1 / np.log2(3)
    assert report.units["full.ndcg_at_10"][0].tolist() == pytest.approx([1, second, second])
    assert report.metrics["sampled.mrr"] == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert report.metrics["full.coverage"] == 3 / 4  # x is seen by all


def test_cold_users_are_measured_by_all_their_test_rows_and_never_sampled(
    interactions: pl.DataFrame,
) -> None:
    split = split_purchases(interactions, SplitConfig(cold_share=0.3))
    tests = prepare_tests(split, RecommendConfig(sampled_negatives=20))
    segments, count = tests.segments(), np.diff(tests.problem.train.indptr)[tests.users]
    assert 50 < segments["cold"].sum() < 130 and (count[segments["cold"]] == 0).all()
    assert not set(tests.rows[:, 0]) & set(tests.users[segments["cold"]])
    assert set(tests.rows[:, 0]) == set(tests.users[segments["full"]])
    taken = csr_matrix(tests.problem.known + tests.truth)
    assert not taken[tests.rows[:, :1], tests.candidates].sum()
