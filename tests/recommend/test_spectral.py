"""The spectral filter against dense algebra, and sums of parts against sums of z-scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from medapps.recommend.lists import blended, evaluate, standardise
from medapps.recommend.parts.low_rank import LowRank
from medapps.recommend.parts.neighbours import item_knn
from medapps.recommend.parts.spectral import decompose
from tests.recommend.boards import checkerboard, drawn


def test_all_directions_without_powers_are_a_ridge_regression_of_items_on_items() -> None:
    train = drawn(50, 20)
    found = decompose(train, user_power=0, item_power=0)
    part = found.cut(20, 0.5)
    dense = train.toarray().astype(np.float64)
    gram = dense.T @ dense
    level = 0.5 * float(found.values[-1]) ** 2
    wanted = dense @ np.linalg.solve(gram + level * np.eye(20), gram)
    rank = len(found.values)  # one direction is left out where users outnumber items
    assert rank == 19
    u, s, v = np.linalg.svd(dense, full_matrices=False)
    rest = (s[-1] ** 2 / (s[-1] ** 2 + level)) * np.outer(u[:, -1] * s[-1], v[-1])
    assert part.part(train)(np.arange(50)) == pytest.approx(wanted - rest, abs=1e-4)


def test_powers_weigh_users_and_items() -> None:
    train = drawn(40, 15)
    part = decompose(train, user_power=0.5, item_power=0.25).cut(6, 0.3)
    dense = train.toarray().astype(np.float64)
    users, items = dense.sum(1), np.maximum(dense.sum(0), 1)
    scaled = dense / np.sqrt(np.maximum(users, 1))[:, None] / items**0.25
    _, s, v = np.linalg.svd(scaled, full_matrices=False)
    f = s[:6] ** 2 / (s[:6] ** 2 + 0.3 * s[13] ** 2)
    wanted = (dense / items**0.25) @ (v[:6].T * f) @ v[:6] * items**0.25
    assert part.part(train)(np.arange(40)) == pytest.approx(wanted, abs=1e-3)


def test_the_withheld_colour_comes_first() -> None:
    train, held = checkerboard()
    part = decompose(train, 0.25, 0.25).cut(2, 0.1)
    assert evaluate(part.part(train), held, train, (1,))["recall_at_1"].mean() == 1


def test_a_sum_of_parts_is_the_sum_of_their_z_scores() -> None:
    """Products and sparse scores are added without their scores being made: same result."""
    train = drawn(30, 25)
    rng = np.random.default_rng(3)
    low = LowRank(
        rng.standard_normal((30, 4)).astype(np.float32),
        (2 + rng.standard_normal((25, 4))).astype(np.float32),
    )
    table = rng.standard_normal((30, 25)).astype(np.float32)
    near = item_knn(train, neighbours=5).part(train)
    parts = [low, near, lambda users: table[users], decompose(train, 0, 0).cut(5, 1).part(train)]
    weights = rng.random((30, 4))
    weights[3] = [0, 1, 0, 0]
    users = np.arange(30)
    wanted = sum(weights[:, n, None] * standardise(parts[n](users)) for n in range(4))
    blocks = list(blended(parts, weights, users, 25))
    assert len(blocks) == 1 and blocks[0][1] == pytest.approx(wanted, abs=2e-4)


def test_a_user_without_purchases_has_no_preference() -> None:
    train = csr_matrix(np.vstack([np.zeros((1, 20)), drawn(30, 20).toarray()]).astype(np.float32))
    part = decompose(train, 0.25, 0.25).cut(5, 0.3)
    assert (part.part(train)(np.array([0])) == 0).all()
