"""EASE and ItemKNN against their textbook formulas."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.recommend.lists import evaluate
from medapps.recommend.parts.neighbours import cut_dense, cut_sparse, ease, ease_weights, item_knn
from tests.recommend.boards import checkerboard, drawn


def textbook_ease(x: np.ndarray, regularization: float) -> np.ndarray:
    inverse = np.linalg.inv(x.T @ x + regularization * np.eye(x.shape[1]))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


@pytest.mark.parametrize("users", [300, 40], ids=["by items", "by users"])
def test_ease_is_the_textbook_formula(users: int) -> None:
    train = drawn(users, 100)
    expected = textbook_ease(train.toarray().astype(np.float64), 5.0)
    assert ease_weights(train, 5.0) == pytest.approx(expected, abs=1e-5)
    got = ease(train, 5.0, neighbours=100).matrix.toarray()
    assert got == pytest.approx(expected, abs=1e-5)


def test_a_cut_keeps_the_largest_of_each_column() -> None:
    weights = np.random.default_rng(0).standard_normal((30, 30)).astype(np.float32)
    kept = cut_dense(weights, 5).toarray()
    limit = np.sort(np.abs(weights), 0)[-5]
    assert (kept == np.where(np.abs(weights) >= limit, weights, 0)).all()


def test_sparse_and_dense_cuts_agree() -> None:
    together = drawn(50, 30).T @ drawn(50, 30, seed=1)
    together.data += np.random.default_rng(0).random(len(together.data), np.float32)
    sparse = cut_sparse(together.tocsr(), 4).toarray()
    assert (sparse == cut_dense(together.toarray(), 4).toarray()).all()


def test_item_knn_is_the_cosine_with_shrinkage() -> None:
    train = drawn(80, 20)
    x = train.toarray()
    count = x.sum(0)
    expected = (x.T @ x) / (np.sqrt(np.outer(count, count)) + 7)
    np.fill_diagonal(expected, 0)
    got = item_knn(train, shrink=7, neighbours=20).matrix.toarray()
    assert got == pytest.approx(expected, abs=1e-6)


def test_above_its_limit_ease_leaves_rare_items_to_item_knn() -> None:
    train = drawn(100, 30)
    matrix = ease(train, 5.0, neighbours=30, limit=20).matrix.toarray()
    common = np.sort(np.argsort(-np.asarray(train.sum(0)).ravel(), kind="stable")[:20])
    inner = textbook_ease(train[:, common].toarray().astype(np.float64), 5.0)
    assert matrix[np.ix_(common, common)] == pytest.approx(inner, abs=1e-5)
    rare = np.setdiff1d(np.arange(30), common)
    knn = item_knn(train, neighbours=30).matrix.toarray()[:, rare]
    scale = matrix[:, rare].sum() / knn.sum()
    assert scale > 0 and matrix[:, rare] == pytest.approx(scale * knn, abs=1e-5)


@pytest.mark.parametrize("make", [lambda x: ease(x, 1.0), item_knn], ids=["ease", "knn"])
def test_withheld_squares_of_a_checkerboard_come_first(make) -> None:  # type: ignore[no-untyped-def]
    train, held = checkerboard()
    part = make(train)
    found = evaluate(lambda users: part.scores(train[users]), held, train, (1,))
    assert found["hit_at_1"].mean() == 1
