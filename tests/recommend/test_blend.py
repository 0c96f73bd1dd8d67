"""Weights: never below the best single part, off where a part is noise, by number of purchases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from medapps.recommend.blend import Candidates, choose, choose_weights, gather
from medapps.recommend.lists import evaluate
from tests.recommend.boards import drawn

USERS, ITEMS = 600, 300


def part(signal: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Noise in which each user's held-out item is raised by the user's signal, (users,)."""
    noise = np.random.default_rng(int(signal.sum() * 1000)).standard_normal((USERS, ITEMS))
    noise[np.arange(USERS), np.arange(USERS) % ITEMS] += signal
    table = noise.astype(np.float32)
    return lambda users: table[users]


@pytest.fixture(scope="module")
def held() -> csr_matrix:
    rows = np.arange(USERS)
    return csr_matrix((np.ones(USERS, np.float32), (rows, rows % ITEMS)), (USERS, ITEMS))


@pytest.fixture(scope="module")
def train(held: csr_matrix) -> csr_matrix:
    """Every other user has few purchases, the others many."""
    lines = drawn(USERS, ITEMS, least=30).toarray()
    lines[::2, 40:] = 0
    lines[held.toarray() > 0] = 0
    lines[np.arange(USERS), (np.arange(USERS) + 1) % ITEMS] = 1
    return csr_matrix(lines)


def test_the_blend_is_never_below_its_best_part(held: csr_matrix, train: csr_matrix) -> None:
    parts = [part(np.full(USERS, level)) for level in (1.0, 2.0, 1.5)]
    candidates = gather(parts, held, train)
    weights, value = choose(candidates)
    singles = [evaluate(p, held, train)["ndcg_at_10"].mean() for p in parts]
    assert [candidates.rewards(row).mean() for row in np.eye(3)] == pytest.approx(singles)
    assert value > max(singles) and (weights > 0).all() and weights.sum() == pytest.approx(1)


def test_noise_has_no_weight(held: csr_matrix, train: csr_matrix) -> None:
    parts = [part(np.full(USERS, 2.5)), part(np.zeros(USERS))]
    weights, _ = choose(gather(parts, held, train))
    assert weights.tolist() == [1, 0]


def test_weights_follow_the_number_of_purchases(held: csr_matrix, train: csr_matrix) -> None:
    few = np.arange(USERS) % 2 == 0
    parts = [part(np.where(few, 3.0, 0.5)), part(np.where(few, 0.5, 3.01))]
    weights = choose_weights(["a", "b"], gather(parts, held, train), buckets=2)
    count = np.diff(train.indptr)
    rows = weights.of(count)
    assert rows[few, 0].mean() > rows[few, 1].mean()
    assert rows[~few, 1].mean() > rows[~few, 0].mean()


def test_users_without_purchases_use_only_the_parts_that_know_them(
    held: csr_matrix, train: csr_matrix
) -> None:
    parts = [part(np.full(USERS, level)) for level in (3.0, 1.0, 2.0)]
    candidates = gather(parts, held, train)
    rule = {"graph": 0.5, "service": 0.5}
    names = ["mf", "graph", "service"]
    chosen = choose_weights(names, candidates, candidates, rule).of(np.zeros(1))[0]
    assert chosen[0] == 0 and chosen[2] > chosen[1]
    fixed = choose_weights(names, candidates, None, rule).of(np.zeros(1))[0]
    assert fixed.tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("seed", range(5))
def test_a_part_that_blurs_two_others_does_not_make_them_worse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = np.zeros((60, 30), bool)
    found[np.arange(60), rng.integers(0, 30, 60)] = True
    scores = rng.standard_normal((3, 60, 30)).astype(np.float32)
    scores[:2] += 1.2 * found
    scores[2] = 0.7 * (scores[0] + scores[1]) + 0.3 * scores[2]  # the best one alone
    every = Candidates(scores, found, np.ones(60, int), rng.integers(1, 9, 60))
    alone = choose_weights(["a", "b"], every.of_parts(np.array([0, 1])))
    joint = choose_weights(["a", "b", "c"], every, plain=("a", "b"))
    assert joint.valid >= alone.valid
    assert joint.valid >= choose_weights(["a", "b", "c"], every).valid


def test_without_validation_users_the_first_part_counts() -> None:
    nobody = Candidates(*(np.empty((2, 0, 5)), np.empty((0, 5), bool)), *np.empty((2, 0), int))
    weights = choose_weights(["a", "b"], nobody, cold_rule={"b": 1.0})
    assert weights.of(np.array([3, 0])).tolist() == [[1, 0], [0, 1]] and weights.valid == 0
