"""The index of known triples against sets."""

from __future__ import annotations

import numpy as np
import pytest

from medapps.graph import known_triples as known
from medapps.graph.known_triples import KnownTriples, flat


def triples(count: int, entities: int, relations: int, seed: int) -> np.ndarray:
    """Distinct triples in ascending order; a few entities have most of them."""
    rng = np.random.default_rng(seed)
    ends = (entities * rng.random((count, 2)) ** 3).astype(np.int32)
    kind = rng.integers(0, relations, count, np.int32)
    return np.unique(np.stack([ends[:, 0], kind, ends[:, 1]], 1), axis=0)


def answers(rows: np.ndarray, entity: int, relation: int, side: str) -> list[int]:
    given, asked = (0, 2) if side == "tail" else (2, 0)
    return sorted(int(row[asked]) for row in rows if (row[given], row[1]) == (entity, relation))


@pytest.mark.parametrize("order", ["ascending", "shuffled"])
@pytest.mark.parametrize("at_once", [7, 2**22])
@pytest.mark.parametrize("relations", [3, 40_000])
def test_answers_are_those_of_a_plain_search(monkeypatch, order, at_once, relations):
    monkeypatch.setattr(known, "AT_ONCE", at_once)
    rows = triples(400, 23, relations, 0)
    if order == "shuffled":
        rows = np.random.default_rng(1).permutation(rows)
    index = KnownTriples.of(rows, 30)
    assert np.shares_memory(index.by_head.answers, rows) == (order == "ascending")
    entity = np.repeat(np.arange(30), 3)
    relation = np.tile(np.append(rows[:2, 1], 1), 30)
    for side in ("tail", "head"):
        query, found = flat(*index.spans(entity, relation, side))
        assert (np.diff(query) >= 0).all()
        for i, (e, r) in enumerate(zip(entity, relation, strict=True)):
            assert found[query == i].tolist() == answers(rows, e, r, side)


def test_a_graph_without_triples_knows_nothing():
    index = KnownTriples.of(np.empty((0, 3), np.int32), 5)
    assert len(flat(*index.spans(np.arange(5), np.zeros(5, int), "tail"))[0]) == 0


def test_the_index_of_a_graph_in_order_takes_six_bytes_per_triple():
    rows = triples(50_000, 2000, 5, 2)
    side = KnownTriples.of(rows, 2000).by_tail
    assert side.relations.nbytes + side.answers.nbytes == 6 * len(rows)
