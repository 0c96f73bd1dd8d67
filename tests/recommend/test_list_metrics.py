"""Metrics of several test items per user against trec_eval, and lists against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from scipy.sparse import csr_matrix

from medapps.recommend.evaluation.metrics import CUTOFFS, list_metrics
from medapps.recommend.lists import standardise, top_k
from tests.recommend.boards import drawn

TREC = {
    "ndcg_cut": "ndcg",
    "recall": "recall",
    "P": "precision",
    "map_cut": "map",
    "success": "hit",
}


@pytest.mark.parametrize("length", [20, 7])
def test_metrics_equal_those_of_trec_eval(length: int) -> None:
    truth = drawn(200, 60, share=0.2)
    rng = np.random.default_rng(0)
    lists = rng.random((200, 60)).argsort(1)[:, :length]
    relevant = {
        str(u): {str(i): 1 for i in truth.indices[a:b]}
        for u, (a, b) in enumerate(zip(truth.indptr, truth.indptr[1:], strict=False))
    }
    run = {
        str(u): {str(i): float(-place) for place, i in enumerate(row)}
        for u, row in enumerate(lists)
    }
    cuts = ",".join(map(str, CUTOFFS))
    judge = pytrec_eval.RelevanceEvaluator(relevant, {f"{name}.{cuts}" for name in TREC})
    expected = judge.evaluate(run)
    got = list_metrics(lists, truth)
    for theirs, ours in TREC.items():
        for k in CUTOFFS:
            values = [expected[str(u)][f"{theirs}_{k}"] for u in range(200)]
            assert got[f"{ours}_at_{k}"] == pytest.approx(np.array(values)), (ours, k)


def test_places_without_an_item_count_for_nothing() -> None:
    truth = csr_matrix(np.eye(3, 5, 4, dtype=np.float32) + np.eye(3, 5, dtype=np.float32))
    lists = np.full((3, 5), -1)
    assert all((values == 0).all() for values in list_metrics(lists, truth).values())


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.4, 0.6]])
def test_lists_are_the_head_of_a_full_sort_without_seen_items(weights: list[float]) -> None:
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((90, 333)).astype(np.float32) * s for s in (1, 50)]
    seen = drawn(90, 333)
    users = rng.permutation(90)[:70]
    parts = [lambda rows, table=table: table[rows] for table in tables]
    ids, scores = top_k(parts, np.array(weights), users, seen, 12)
    total = sum(w * standardise(t) for w, t in zip(weights, tables, strict=True))
    total[seen.toarray() > 0] = -np.inf
    expected = np.argsort(-total[users], axis=1)[:, :12]
    assert (ids == expected).all()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_weights_may_differ_by_user_and_parts_without_opinion_add_nothing() -> None:
    first = np.tile(np.arange(6, dtype=np.float32), (2, 1))
    flat = np.full((2, 6), 7, np.float32)
    parts = [lambda rows: first[rows], lambda rows: -first[rows], lambda rows: flat[rows]]
    weights = np.array([[1, 0, 1], [0, 1, 1]])
    ids, _ = top_k(parts, weights, np.arange(2), csr_matrix((2, 6)), 2)
    assert ids.tolist() == [[5, 4], [0, 1]]


def test_a_list_ends_where_items_run_out() -> None:
    seen = csr_matrix(np.array([[1, 1, 0, 1]], np.float32))
    scores = np.arange(4, dtype=np.float32)[None]
    ids, _ = top_k([lambda rows: scores[rows]], np.ones(1), np.zeros(1, int), seen, 3)
    assert ids.tolist() == [[2, -1, -1]]
