"""Negatives are verified, distinct and uniform; bitmap and keys agree with a set."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.errors import MedappsError
from medapps.recommend.known_pairs import KnownPairs, draw_candidates, draw_negatives


@pytest.fixture(params=[True, False], ids=["bitmap", "keys"])
def pairs(request: pytest.FixtureRequest) -> tuple[KnownPairs, set[tuple[int, int]]]:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 30, 400), rng.integers(0, 50, 400)
    known = KnownPairs.build(user, item, 30, 50, bitmap=request.param)
    return known, set(zip(user.tolist(), item.tolist(), strict=True))


def test_membership_equals_a_set(pairs: tuple[KnownPairs, set]) -> None:
    known, truth = pairs
    user, item = np.divmod(np.arange(1500), 50)
    expected = np.array([pair in truth for pair in zip(user.tolist(), item.tolist(), strict=True)])
    assert np.array_equal(known.has(user, item), expected)
    assert np.array_equal(known.mask(np.arange(30)), expected.reshape(30, 50))
    assert np.array_equal(known.mask(np.array([7, 3])), expected.reshape(30, 50)[[7, 3]])
    assert np.array_equal(known.counts(), expected.reshape(30, 50).sum(1))


def test_training_negatives_are_never_known_and_uniform(pairs: tuple[KnownPairs, set]) -> None:
    known, truth = pairs
    users = np.repeat(np.arange(30), 400)
    items = draw_negatives(known, users, 4, np.random.default_rng(1))
    drawn = zip(np.repeat(users, 4).tolist(), items.reshape(-1).tolist(), strict=True)
    assert not truth & set(drawn)
    for user in range(30):
        free = np.flatnonzero(~known.mask(np.array([user]))[0])
        count = np.bincount(items[users == user].reshape(-1), minlength=50)[free]
        expected = 1600 / len(free)
        assert ((count - expected) ** 2 / expected).sum() < 2.2 * len(free)  # chi square


def test_candidates_are_distinct_unknown_and_not_the_positive(
    pairs: tuple[KnownPairs, set],
) -> None:
    known, truth = pairs
    users = np.arange(30)
    positive = np.array([np.flatnonzero(~row)[0] for row in known.mask(users)])
    picked = draw_candidates(known, users, positive, 20, np.random.default_rng(2))
    assert picked.shape == (30, 20)
    for user in users:
        assert len(set(picked[user].tolist())) == 20 and positive[user] not in picked[user]
        assert not {(int(user), int(i)) for i in picked[user]} & truth
    again = draw_candidates(known, users, positive, 20, np.random.default_rng(2))
    assert np.array_equal(picked, again)


def test_all_free_items_can_be_drawn() -> None:
    known = KnownPairs.build(np.array([0]), np.array([1]), 1, 4)
    picked = draw_candidates(known, np.array([0]), np.array([2]), 2, np.random.default_rng(0))
    assert set(picked[0].tolist()) == {0, 3}


def test_too_many_candidates_is_said() -> None:
    known = KnownPairs.build(np.array([0, 0]), np.array([0, 1]), 1, 5)
    with pytest.raises(MedappsError, match=r"99 distinct negatives .* only 2 items"):
        draw_candidates(known, np.array([0]), np.array([4]), 99, np.random.default_rng(0))


def test_a_user_with_the_whole_catalogue_is_said() -> None:
    known = KnownPairs.build(np.zeros(3, int), np.arange(3), 2, 3)
    with pytest.raises(MedappsError, match="1 users took every one of the 3 items"):
        draw_negatives(known, np.array([0, 1]), 4, np.random.default_rng(0))
