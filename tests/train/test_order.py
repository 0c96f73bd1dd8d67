"""Orders of an epoch: every triple once, at random, and within what is in memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from medapps.train.batches import across
from medapps.train.order import Pairs, Partitions, Shuffle, group_triples


def epoch_of(order, epoch: int) -> np.ndarray:
    return np.concatenate([order.rows(epoch, step) for step in range(order.steps)])


@pytest.mark.parametrize("triples", [1000, 1024, 1031])
def test_windows_of_blocks_visit_every_triple_once(triples):
    order = Shuffle(triples, 50, 37, seed=3, window=256, block=16)
    for epoch in range(3):
        assert np.array_equal(np.sort(epoch_of(order, epoch)), np.arange(triples))
    assert not np.array_equal(epoch_of(order, 0), epoch_of(order, 1))


def test_a_window_touches_few_blocks_and_mixes_them():
    order = Shuffle(4096, 50, 64, seed=0, window=512, block=16)
    rows = epoch_of(order, 0)
    for window in rows.reshape(-1, 512):
        blocks = np.unique(window // 16)
        assert len(blocks) == 512 // 16
        assert np.abs(np.diff(blocks)).max() > 8, "blocks come from everywhere"
        assert (np.diff(window) == 1).mean() < 0.05, "neighbours are torn apart"


def test_few_triples_are_shuffled_as_a_whole():
    order = Shuffle(2000, 50, 10, seed=5)
    rows = epoch_of(order, 2)
    assert np.array_equal(np.sort(rows), np.arange(2000))
    assert abs(np.corrcoef(rows, np.arange(2000))[0, 1]) < 0.1
    first = rows[:200]  # comes from everywhere
    assert np.bincount(first // 200, minlength=10).min() > 5


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_pairs_visit_every_triple_once_and_hold_both_ends(count):
    rng = np.random.default_rng(0)
    triples = rng.integers(0, 100, (1234, 3), np.int32)
    parts = Partitions(100, count)
    grouped = np.empty_like(triples)
    sizes = group_triples(triples, parts, grouped)
    assert np.array_equal(grouped[np.lexsort(grouped.T)], triples[np.lexsort(triples.T)]), (
        "a reordering"
    )
    order = Pairs(parts, sizes, 50, seed=1)
    seen = []
    for epoch in range(2):
        rows = epoch_of(order, epoch)
        assert np.array_equal(np.sort(rows), np.arange(len(triples)))
        seen.append(rows)
        for step in range(order.steps):
            ranges = order.entities(epoch, step)
            assert len(ranges) == min(2, count)
            ends = grouped[order.rows(epoch, step)][:, [0, 2]]
            held = np.zeros(100, bool)
            for first, last in ranges:
                held[first:last] = True
            assert held[ends].all()
    if count > 2:
        assert not np.array_equal(seen[0], seen[1])


def test_from_pair_to_pair_one_partition_changes():
    parts = Partitions(90, 9)
    order = Pairs(parts, (1,) * parts.pairs, 1, seed=0)
    for epoch in range(3):
        members = [set(parts.members(int(pair))) for pair in order.visits(epoch)]
        assert len(members) == 36 and len({frozenset(m) for m in members}) == 36
        assert all(a & b for a, b in pairwise(members))


def test_numbers_across_ranges_are_entities():
    ranges = ((3, 6), (10, 12))
    assert across(ranges, np.arange(5)).tolist() == [3, 4, 5, 10, 11]
