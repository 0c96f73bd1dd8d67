"""EASE and ItemKNN against their textbook formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge

from medapps.recommend.lists import evaluate
from medapps.recommend.parts.neighbours import ease, ease_weights, item_knn
from tests.recommend.boards import checkerboard, drawn


def textbook_ease(x: np.ndarray, regularization: float) -> np.ndarray:
    inverse = np.linalg.inv(x.T @ x + regularization * np.eye(x.shape[1]))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


def few_neighbours(x: np.ndarray, regularization: float, count: int) -> np.ndarray:
    """The largest positive weights of each column, then a regression on these items alone."""
    full = textbook_ease(x, regularization)
    out = np.zeros_like(full)
    for item in range(x.shape[1]):
        some = np.argsort(-full[:, item])[:count]
        some = some[full[some, item] > 1e-7]
        if not len(some):
            continue
        out[some, item] = (
            Ridge(alpha=regularization, fit_intercept=False).fit(x[:, some], x[:, item]).coef_
        )
    return out


def test_dense_ease_is_the_textbook_formula() -> None:
    train = drawn(300, 100)
    expected = textbook_ease(train.toarray().astype(np.float64), 5.0)
    assert ease_weights(train, 5.0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("users", [300, 60], ids=["by items", "by users"])
def test_few_neighbours_are_fitted_again(users: int) -> None:
    # items bought by the same users tie, and rounding would choose between them
    train = csr_matrix(np.unique(drawn(users, 80).toarray(), axis=1))
    expected = few_neighbours(train.toarray().astype(np.float64), 5.0, 7)
    assert ease(train, 5.0, neighbours=7).matrix.toarray() == pytest.approx(expected, abs=1e-4)


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
    inner = few_neighbours(train[:, common].toarray().astype(np.float64), 5.0, 30)
    assert matrix[np.ix_(common, common)] == pytest.approx(inner, abs=1e-4)
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
