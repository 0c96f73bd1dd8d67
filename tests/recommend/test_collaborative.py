"""The factorisation solves what it says it solves, and finds a known answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from medapps.recommend.lists import evaluate
from medapps.recommend.parts.collaborative import (
    Factoring,
    factorise,
    fold_in,
    penalties,
    solve_rows,
)
from tests.recommend.boards import checkerboard, drawn

HOW = Factoring(factors=8, unobserved=0.2, regularization=0.3)


def normal_equations(
    purchases: np.ndarray, items: np.ndarray, prior: np.ndarray, how: Factoring
) -> np.ndarray:
    """Each row's dense system in float64."""
    out = []
    for row, mean in zip(purchases, np.broadcast_to(prior, (len(purchases), 8)), strict=True):
        level = how.regularization * (1 + row.sum()) ** how.power
        own = items[row > 0]
        left = how.unobserved * items.T @ items + (1 - how.unobserved) * own.T @ own
        out.append(np.linalg.solve(left + level * np.eye(8), own.sum(0) + level * mean))
    return np.array(out)


def test_rows_solve_their_normal_equations() -> None:
    train = drawn(50, 30)
    rng = np.random.default_rng(1)
    items, prior = rng.standard_normal((30, 8)), rng.standard_normal((50, 8))
    got = solve_rows(
        train,
        items.astype(np.float32),
        penalties(train, HOW),
        prior.astype(np.float32),
        np.zeros((50, 8), np.float32),
        HOW,
        steps=20,
    )
    assert got == pytest.approx(normal_equations(train.toarray(), items, prior, HOW), abs=1e-4)


def test_a_solution_is_a_minimum_of_the_loss_over_all_pairs() -> None:
    train = drawn(30, 20).toarray().astype(np.float64)
    rng = np.random.default_rng(2)
    items = rng.standard_normal((20, 8))
    z = normal_equations(train, items, np.zeros((1, 8)), HOW)

    def loss(z: np.ndarray) -> float:
        x = z @ items.T
        level = HOW.regularization * (1 + train.sum(1)) ** HOW.power
        bought = train * ((1 - HOW.unobserved) * x**2 - 2 * x)
        return float((HOW.unobserved * x**2 + bought).sum() + (level[:, None] * z**2).sum())

    lowest = loss(z)
    for _ in range(20):
        assert loss(z + 0.01 * rng.standard_normal(z.shape)) > lowest


def test_new_users_are_folded_in_as_trained_ones() -> None:
    train = drawn(200, 40)
    factors = factorise(train, replace(HOW, steps=8))
    assert fold_in(factors, train) == pytest.approx(factors.users, abs=0.02)
    nobody = fold_in(factors, csr_matrix((2, 40), dtype=np.float32))
    assert nobody == pytest.approx(np.tile(factors.base, (2, 1)))


def test_withheld_squares_of_a_checkerboard_come_first() -> None:
    train, held = checkerboard()
    factors = factorise(train, Factoring(factors=8))
    assert evaluate(factors.scores, held, train, (1,))["hit_at_1"].mean() == 1


def test_equal_seeds_give_equal_factors() -> None:
    train = drawn(60, 30)
    first, second = factorise(train, HOW, seed=3), factorise(train, HOW, seed=3)
    assert (first.users == second.users).all() and (first.items == second.items).all()


def test_service_vectors_tell_a_new_users_colour() -> None:
    train, _ = checkerboard()
    colour = np.where(np.arange(40) % 2 == 0, 1, -1).astype(np.float32)[:, None]
    lines = train.tolil()
    lines[:4] = 0  # two new users of each colour
    factors = factorise(csr_matrix(lines), Factoring(factors=8), user_service=colour)
    scores = factors.scores(np.arange(4))
    same = (np.arange(40)[None, :] + np.arange(4)[:, None]) % 2 == 0
    assert (np.where(same, scores, np.inf).min(1) > np.where(same, -np.inf, scores).max(1)).all()
