"""Randomness by counter."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.config import LARGEST_SEED
from medapps.errors import MedappsError
from medapps.train.order import BLOCK, shuffled, start_rows, stream


@pytest.mark.parametrize("total", [1, 2, 7, 100, 1023, 54321])
def test_shuffled_is_a_permutation_and_changes_with_epoch_and_seed(total):
    orders = [shuffled(np.arange(total), total, s, e) for s, e in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(total))
    if total > 20:
        assert (orders[0] != orders[1]).mean() > 0.9 and (orders[0] != orders[2]).mean() > 0.9


def test_shuffled_positions_can_be_asked_in_any_portion():
    whole = shuffled(np.arange(5000), 5000, 3, 2)
    parts = [shuffled(np.arange(a, a + 500), 5000, 3, 2) for a in range(0, 5000, 500)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_shuffled_looks_random():
    """Neighbours land far apart, and first halves mix: both would fail for a shift or a stride."""
    total = 20_000
    order = shuffled(np.arange(total), total, 0, 0)
    steps = np.abs(np.diff(order))
    assert abs(steps.mean() / total - 1 / 3) < 0.02
    assert len(np.unique(np.diff(order))) > total / 2
    low = (order[: total // 2] < total // 2).mean()
    assert abs(low - 0.5) < 0.02


def test_streams_of_different_counters_differ_and_equal_ones_agree():
    draws = [
        stream(*key).integers(0, 2**62, 4).tolist() for key in ((0, 1), (0, 2), (0, 1, 1), (1, 1))
    ]
    assert len({tuple(d) for d in draws}) == 4
    assert stream(0, 1, 5, 6).random() == stream(0, 1, 5, 6).random()


def test_start_rows_depend_on_the_row_alone():
    whole = start_rows(7, 0, 0, BLOCK + 50, 6, 1.5)
    part = start_rows(7, 0, BLOCK - 5, 20, 6, 1.5)
    assert np.array_equal(whole[BLOCK - 5 : BLOCK + 15], part)
    assert np.sqrt((whole**2).sum(1).mean()) == pytest.approx(1.5, rel=0.02)
    assert abs(whole.mean()) < 0.01


def test_no_two_seeds_draw_the_same_numbers_and_others_are_refused():
    seeds = [0, 1, 2**32, 2**32 + 1, LARGEST_SEED - 1, LARGEST_SEED]
    drawn = {tuple(stream(seed, 0).integers(0, 2**62, 4).tolist()) for seed in seeds}
    assert len(drawn) == len(seeds)
    for seed in (-1, LARGEST_SEED + 1, 2**64, 2**64 + 1):
        with pytest.raises(MedappsError, match="from 0 to 9223372036854775807"):
            stream(seed, 0)
