"""Ridge maps against their normal equations, and on users whose tastes are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from medapps.recommend.lists import evaluate
from medapps.recommend.parts.service import standard, user_map
from tests.recommend.boards import checkerboard, drawn


def colours(size: int = 40) -> np.ndarray:
    return np.where(np.arange(size) % 2 == 0, 1, -1).astype(np.float32)[:, None]


def test_a_new_users_vector_foretells_its_items() -> None:
    train, held = checkerboard()
    lines = train.tolil()
    lines[:4] = 0
    part = user_map(colours(), csr_matrix(lines))
    new = csr_matrix(checkerboard()[0] + held)[:4]
    truth = csr_matrix((new.data, new.indices, np.r_[new.indptr, np.full(36, new.nnz)]), (40, 40))
    found = evaluate(part, truth, csr_matrix((40, 40)), (20,))
    assert found["recall_at_20"].mean() == 1


def test_the_user_map_is_a_ridge_regression() -> None:
    from sklearn.linear_model import Ridge

    train = drawn(60, 25)
    service = np.random.default_rng(3).standard_normal((60, 5)).astype(np.float32)
    x = train.toarray()
    x /= np.sqrt(x.sum(1, keepdims=True))
    expected = Ridge(alpha=0.05 * 60).fit(service, x).predict(service)
    got = user_map(service, train, ridge=0.05)(np.arange(60))
    assert got == pytest.approx(expected, abs=1e-5)


def test_standard_vectors_have_length_one_on_average_and_zeros_where_unknown() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32) * 9 + 4
    known = np.arange(50) != 3
    out = standard(vectors, known, np.ones(50, bool))
    assert np.square(out[known]).sum(1).mean() == pytest.approx(1, abs=1e-5)
    assert (out[3] == 0).all() and out[known].mean(0) == pytest.approx(np.zeros(7), abs=1e-6)
